from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from queue import SimpleQueue
from typing import Any
from uuid import UUID

import pytest
from conftest import TOKEN, WORKER_TOKEN, Running, Server, eventually

from dq_jobs import (
    Again,
    AsyncClient,
    Client,
    Dead,
    DqError,
    Job,
    Outcome,
    Release,
    Retry,
    Skip,
    Snooze,
    Throttle,
    Worker,
)


def new_worker(server: Server, **options: Any) -> Worker:
    return Worker(server.url, TOKEN, **options)


def test_a_job_fires(server: Server, client: Client, queue: str) -> None:
    jobs: SimpleQueue[Job] = SimpleQueue()
    worker = new_worker(server)
    worker.handler(queue)(jobs.put)
    with Running(worker):
        payload = {"order": 17, "note": "é"}
        scheduled = client.schedule(queue, payload, due="300ms", key="order-17", headers={"traceparent": "00-1"})
        job = jobs.get(timeout=10)
    assert (job.queue, job.payload, job.key, job.id) == (queue, payload, "order-17", scheduled.id)
    assert (job.due, job.attempt, job.max_attempts) == (scheduled.due, 1, 3)
    assert job.headers["traceparent"] == "00-1"
    assert job.token > 0
    assert client.get(queue, scheduled.id)["ended"]["ending"] == "done"


def test_a_coroutine_gets_bytes(server: Server, client: Client, queue: str) -> None:
    jobs: SimpleQueue[Job] = SimpleQueue()
    worker = new_worker(server)

    @worker.handler(queue)
    async def handle(job: Job) -> None:
        await asyncio.sleep(0)
        jobs.put(job)

    with Running(worker):
        client.schedule(queue, b"\xff\x00")
        assert jobs.get(timeout=10).payload == b"\xff\x00"


def test_many_jobs_at_once(server: Server, client: Client, queue: str) -> None:
    together = threading.Barrier(4)
    worker = new_worker(server, concurrency=4)

    @worker.handler(queue)
    def handle(job: Job) -> None:
        together.wait(10)

    ids = [client.schedule(queue).id for _ in range(12)]
    with Running(worker):
        eventually(lambda: all(client.get(queue, id)["state"] == "ended" for id in ids))
    assert all(client.get(queue, id)["ended"]["ending"] == "done" for id in ids)


def test_results_that_come_during_a_call_share_the_next(
    server: Server, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = new_worker(server, concurrency=20)
    sent, all_ended = asyncio.Event(), asyncio.Event()
    ended: list[Job] = []
    calls: list[int] = []
    request = AsyncClient.request

    async def counted(self: AsyncClient, method: str, path: str, body: Any = None, **options: Any) -> Any:
        if path == "/v1/leases:settle":
            calls.append(len(body["results"]))
            sent.set()
            await all_ended.wait()
        return await request(self, method, path, body, **options)

    @worker.handler(queue)
    async def handle(job: Job) -> None:
        if job.payload > 0:
            await sent.wait()
        ended.append(job)
        if len(ended) == 20:
            all_ended.set()

    monkeypatch.setattr(AsyncClient, "request", counted)
    ids = [client.schedule(queue, n).id for n in range(20)]
    with Running(worker):
        eventually(lambda: all(client.get(queue, id)["state"] == "ended" for id in ids))
    assert calls[0] == 1
    assert sum(calls) == 20
    assert len(calls) <= 3


@pytest.mark.parametrize("wrong", [Skip(42), Dead("\ud800"), Again({1}), None])  # type: ignore[arg-type]
def test_results_that_cannot_be_sent_together_go_alone(
    server: Server, client: Client, queue: str, wrong: Outcome | None
) -> None:
    queue = f"{queue}-{wrong and wrong.name}"
    worker = new_worker(server)
    waiting: list[Job] = []
    all_started = asyncio.Event()

    @worker.handler(queue)
    async def handle(job: Job) -> Outcome | None:
        waiting.append(job)
        if len(waiting) == 5:
            all_started.set()
        await all_started.wait()
        if wrong is None:
            return Again("x" * 600_000, due="1h")  # too large together
        return wrong if job.payload == 0 else Snooze("1h")

    jobs = [client.schedule(queue, n, max_attempts=1).id for n in range(5)]
    with Running(worker):
        eventually(lambda: all(client.get(queue, id)["state"] not in ("ready", "running") for id in jobs))
    states = [client.get(queue, id)["state"] for id in jobs]
    assert states == ["dead" if wrong else "scheduled"] + ["scheduled"] * 4


def test_an_error_of_the_server_for_a_shared_request_harms_no_result(
    server: Server, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = new_worker(server)
    waiting: list[Job] = []
    all_started = asyncio.Event()
    failures: list[int] = []
    request = AsyncClient.request

    async def broken(self: AsyncClient, method: str, path: str, body: Any = None, **options: Any) -> Any:
        if path == "/v1/leases:settle" and len(body["results"]) > 1:
            failures.append(len(body["results"]))
            raise DqError("internal", "a request for several results fails")
        return await request(self, method, path, body, **options)

    @worker.handler(queue)
    async def handle(job: Job) -> None:
        waiting.append(job)
        if len(waiting) == 5:
            all_started.set()
        await all_started.wait()

    monkeypatch.setattr(AsyncClient, "request", broken)
    ids = [client.schedule(queue).id for _ in range(5)]
    with Running(worker):
        eventually(lambda: all(client.get(queue, id)["state"] == "ended" for id in ids))
    assert failures
    assert all(client.get(queue, id)["ended"]["ending"] == "done" for id in ids)


def test_a_failing_handler_is_retried_with_its_delay(server: Server, client: Client, queue: str) -> None:
    jobs: SimpleQueue[Job] = SimpleQueue()
    worker = new_worker(server)

    @worker.handler(queue)
    def handle(job: Job) -> None:
        jobs.put(job)
        if job.attempt == 1:
            raise ValueError("no route to host")
        if job.attempt == 2:
            raise Retry("busy", delay="200ms")
        raise StopIteration

    with Running(worker):
        scheduled = client.schedule(queue)
        attempts = [jobs.get(timeout=10) for _ in range(3)]
        eventually(lambda: client.get(queue, scheduled.id)["state"] == "dead")
    dues = [job.due for job in attempts]
    assert dues[0]
    assert dues[1]
    assert dues[2]
    assert (dues[1] - dues[0]).total_seconds() >= 0.1
    assert (dues[2] - dues[1]).total_seconds() >= 0.3
    assert "StopIteration" in client.get(queue, scheduled.id)["dead"]["message"]


def run_once(
    server: Server, client: Client, queue: str, handler: Callable[[Job], Any], **options: Any
) -> dict[str, Any]:
    """The job after its handler has run once."""
    ran = threading.Event()
    worker = new_worker(server)

    @worker.handler(queue)
    def handle(job: Job) -> Outcome | None:
        worker.stop()
        ran.set()
        return handler(job)  # type: ignore[no-any-return]

    with Running(worker):
        scheduled = client.schedule(queue, {"n": 1}, **options)
        assert ran.wait(10)
    return client.get(queue, scheduled.id)


@pytest.mark.parametrize("raised", [False, True])
def test_outcomes(server: Server, client: Client, queue: str, raised: bool) -> None:
    def after(outcome: Outcome) -> dict[str, Any]:
        def handler(job: Job) -> Outcome:
            if raised:
                raise outcome
            return outcome

        return run_once(server, client, queue, handler)

    skipped = after(Skip("paid"))["ended"]
    assert (skipped["ending"], skipped["reason"]) == ("skipped", "paid")
    dead = after(Dead("no such order"))
    assert (dead["state"], dead["dead"]["message"]) == ("dead", "no such order")
    snoozed = after(Snooze("1h"))
    assert (snoozed["state"], snoozed["attempts"]) == ("scheduled", 0)
    failed = after(Retry("busy", delay="1h"))
    assert (failed["state"], failed["attempts"], failed["last_error"]) == ("scheduled", 1, "busy")
    again = after(Again({"n": 2}, due="1h"))
    assert (again["state"], again["attempts"], again["payload"]["json"]) == ("scheduled", 0, {"n": 2})
    assert after(Again(b"\xff", due="1h"))["payload"]["base64"] == "/w=="
    released = after(Release())
    assert (released["state"], released["attempts"]) == ("ready", 0)
    client.cancel(queue, UUID(released["id"]))
    throttled = after(Throttle("1h"))
    assert (throttled["state"], throttled["attempts"]) == ("scheduled", 0)


def test_an_outcome_that_cannot_be_stored_fails_the_attempt(server: Server, client: Client, queue: str) -> None:
    def error_after(result: Any) -> str:
        # A second attempt would run beside the next job.
        return str(run_once(server, client, queue, lambda _: result, max_attempts=1)["dead"]["message"])

    assert "soon" in error_after(Snooze("soon"))
    assert "JSON" in error_after(Again(object()))
    assert "bytes" in error_after(Again("x" * 3_000_000))
    assert "returned 42" in error_after(42)
    assert "surrogates" in error_after(Dead("\ud800"))


@contextmanager
def failing(worker: Worker) -> Iterator[None]:
    with pytest.raises(DqError) as raised, Running(worker) as running:
        running.thread.join(10)
    assert raised.value.kind in ("unauthenticated", "forbidden")
    yield


def test_a_worker_without_permission_ends_with_the_error(server: Server) -> None:
    for token in ("a-wrong-token", WORKER_TOKEN):
        worker = Worker(server.url, token)
        worker.handler("NOT-MAIL")(lambda _: None)
        with failing(worker):
            pass


def test_a_workers_token_suffices(server: Server, client: Client) -> None:
    jobs: SimpleQueue[Job] = SimpleQueue()
    worker = Worker(server.url, WORKER_TOKEN)
    worker.handler("MAIL")(jobs.put)
    with Running(worker):
        client.schedule("MAIL", "hello")
        assert jobs.get(timeout=10).payload == "hello"


@pytest.mark.parametrize("kind", ["function", "coroutine", "blocking coroutine"])
def test_a_long_handler_keeps_its_lease(server: Server, client: Client, queue: str, kind: str) -> None:
    started, done = threading.Event(), threading.Event()
    worker = new_worker(server, lease="1s")
    deliveries = []

    def function(job: Job) -> None:
        deliveries.append(job.token)
        started.set()
        assert done.wait(10)

    async def coroutine(job: Job) -> None:
        deliveries.append(job.token)
        started.set()
        await asyncio.to_thread(done.wait, 10)

    async def blocking(job: Job) -> None:
        function(job)

    handler: Any = {"function": function, "coroutine": coroutine, "blocking coroutine": blocking}[kind]
    worker.handler(queue)(handler)
    with Running(worker):
        scheduled = client.schedule(queue)
        assert started.wait(10)
        first = leased_until(client, queue, scheduled.id)
        eventually(lambda: (leased_until(client, queue, scheduled.id) - first).total_seconds() > 1.2)
        done.set()
    assert client.get(queue, scheduled.id)["ended"]["ending"] == "done"
    assert len(deliveries) == 1


def leased_until(client: Client, queue: str, id: Any) -> datetime:
    return datetime.fromisoformat(client.get(queue, id)["leased_until"].replace("Z", "+00:00"))


def test_a_lost_lease_cancels_the_handlers(own_server: Server) -> None:
    started, cancelled = threading.Barrier(3), threading.Barrier(3)
    worker = new_worker(own_server, lease="1s")

    @worker.handler("FUNCTION")
    def function(job: Job) -> None:
        started.wait(10)
        assert job.cancelled.wait(20)
        cancelled.wait(10)

    @worker.handler("COROUTINE")
    async def coroutine(job: Job) -> None:
        await asyncio.to_thread(started.wait, 10)
        try:
            await asyncio.Event().wait()
        finally:
            assert job.cancelled.is_set()
            await asyncio.to_thread(cancelled.wait, 10)

    with Running(worker):
        with Client(own_server.url, TOKEN) as client:
            client.schedule("FUNCTION")
            client.schedule("COROUTINE")
        started.wait(10)
        own_server.kill()
        cancelled.wait(20)


def test_nothing_is_lost_when_the_server_is_killed(own_server: Server) -> None:
    seen: SimpleQueue[int] = SimpleQueue()
    running, restarted = threading.Semaphore(0), threading.Event()
    worker = new_worker(own_server, concurrency=5)

    @worker.handler("MAIL")
    def handle(job: Job) -> None:
        seen.put(job.payload)
        running.release()
        assert restarted.wait(20)

    with Client(own_server.url, TOKEN) as client, Running(worker):
        scheduled = [client.schedule("MAIL", n) for n in range(40)]
        for _ in range(5):
            assert running.acquire(timeout=10)
        own_server.kill()
        restarted.set()  # these outcomes have nobody who takes them
        own_server.start()
        eventually(lambda: all(client.get("MAIL", job.id)["state"] == "ended" for job in scheduled))
        ended = [client.get("MAIL", job.id) for job in scheduled]
    assert {job["ended"]["ending"] for job in ended} == {"done"}
    assert {job["deliveries"] for job in ended} == {1}
    assert sorted(seen.get() for _ in scheduled) == list(range(40))


PROGRAM = """
import sys
from dq_jobs import Job, Worker

worker = Worker(lease=sys.argv[1], grace=float(sys.argv[2]))

@worker.handler("FUNCTION")
def function(job: Job) -> None:
    print("started", job.payload, flush=True)
    sys.stdin.readline()
    print("ended", job.cancelled.is_set(), flush=True)

@worker.handler("COROUTINE")
async def coroutine(job: Job) -> None:
    import asyncio
    print("started", job.payload, flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("cancelled", flush=True)

worker.run()
"""


@contextmanager
def program(server: Server, lease: str, grace: float) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "DQ_API": server.url, "DQ_TOKEN": TOKEN}
    command = [sys.executable, "-c", PROGRAM, lease, str(grace)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def send_line(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def test_sigterm_waits_for_running_handlers(own_server: Server) -> None:
    with program(own_server, "30s", 20) as process, Client(own_server.url, TOKEN) as client:
        first = client.schedule("FUNCTION", 1)
        assert line(process) == "started 1"
        process.send_signal(signal.SIGTERM)
        send_line(process)
        assert line(process) == "ended False"
        assert process.wait(10) == 0
        assert client.get("FUNCTION", first.id)["ended"]["ending"] == "done"


def test_sigterm_hands_back_the_rest(own_server: Server) -> None:
    with program(own_server, "30s", 0.1) as process, Client(own_server.url, TOKEN) as client:
        scheduled = client.schedule("COROUTINE", 1)
        assert line(process) == "started 1"
        process.send_signal(signal.SIGTERM)
        assert line(process) == "cancelled"
        assert process.wait(10) == 0
        job = client.get("COROUTINE", scheduled.id)
        assert (job["state"], job["attempts"]) == ("ready", 0)


def test_a_suspended_process_loses_its_lease(own_server: Server) -> None:
    with program(own_server, "1s", 20) as process, Client(own_server.url, TOKEN) as client:
        client.schedule("COROUTINE", 1)
        assert line(process) == "started 1"
        process.send_signal(signal.SIGSTOP)
        taken_over(own_server, "COROUTINE")
        process.send_signal(signal.SIGCONT)
        assert line(process) == "cancelled"


def test_a_process_suspended_while_it_claims_does_not_start_the_job(own_server: Server) -> None:
    with program(own_server, "1s", 20) as process, Client(own_server.url, TOKEN) as client:
        first = client.schedule("FUNCTION", 1)
        assert line(process) == "started 1"
        send_line(process)
        assert line(process) == "ended False"
        eventually(lambda: client.get("FUNCTION", first.id)["state"] == "ended")  # and it claims the next
        process.send_signal(signal.SIGSTOP)
        client.schedule("COROUTINE", 2)
        taken_over(own_server, "COROUTINE")
        process.send_signal(signal.SIGCONT)
        client.schedule("COROUTINE", 3)
        assert line(process) == "started 3"


def taken_over(server: Server, queue: str) -> None:
    """Returns when another worker has run the queue's job."""
    jobs: SimpleQueue[Job] = SimpleQueue()
    worker = new_worker(server)
    worker.handler(queue)(jobs.put)
    with Running(worker):
        jobs.get(timeout=20)
