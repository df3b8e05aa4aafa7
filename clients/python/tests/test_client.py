from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from uuid import uuid4

import pytest
from conftest import TOKEN, WORKER_TOKEN, Server

from dq_jobs import AsyncClient, Client, DqError


def test_schedule_move_and_cancel(client: Client, queue: str) -> None:
    scheduled = client.schedule(queue, {"order": 17}, due=timedelta(minutes=15), key="order/17 é")
    assert scheduled.result == "created"
    job = client.get(queue, "order/17 é")
    assert job["id"] == str(scheduled.id)
    assert job["state"] == "scheduled"
    assert job["payload"]["json"] == {"order": 17}
    assert client.where(queue, scheduled.id)["now"]["reason"] == "not_due"
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    client.reschedule(queue, "order/17 é", tomorrow)
    moved = datetime.fromisoformat(client.get(queue, scheduled.id)["due"].replace("Z", "+00:00"))
    assert abs(moved - tomorrow) <= timedelta(milliseconds=1)
    client.cancel(queue, scheduled.id)
    assert client.get(queue, scheduled.id)["ended"]["ending"] == "cancelled"


def test_a_cancel_says_that_the_job_runs_or_that_there_is_none(client: Client, queue: str) -> None:
    job = client.schedule(queue, key="k").id
    client.request("POST", "/v1/claims", {"queues": {queue: 1}})
    assert kind_of(lambda: client.cancel(queue, "k")) == "conflict"
    assert kind_of(lambda: client.cancel(queue, job)) == "conflict"
    assert kind_of(lambda: client.reschedule(queue, job, "1h")) == "conflict"
    assert kind_of(lambda: client.cancel(queue, "other")) == "not found"
    assert kind_of(lambda: client.reschedule(queue, uuid4(), "1h")) == "not found"


def kind_of(call: Callable[[], object]) -> str:
    with pytest.raises(DqError) as raised:
        call()
    return raised.value.kind


def test_options_reach_the_server(client: Client, queue: str) -> None:
    at = datetime(2090, 1, 31, 12, tzinfo=timezone(timedelta(hours=2)))
    scheduled = client.schedule(
        queue, b"\xff\x00", due=at, group="tenant-1", headers={"x": "y"}, max_attempts=7, content_type="image/x"
    )
    assert scheduled.due == at
    job = client.get(queue, scheduled.id)
    assert (job["group"], job["max_attempts"], job["headers"]["x"]) == ("tenant-1", 7, "y")
    assert job["payload"] == {"content_type": "image/x", "size": 2, "truncated": False, "base64": "/wA="}


def test_a_key_is_kept_or_replaced(client: Client, queue: str) -> None:
    first = client.schedule(queue, 1, due="1h", key="a")
    kept = client.schedule(queue, 2, due="1h", key="a")
    assert (kept.result, kept.id) == ("kept", first.id)
    replaced = client.schedule(queue, 3, due="2h", key="a", on_conflict="replace")
    assert replaced.result == "replaced"
    assert client.get(queue, "a")["payload"]["json"] == 3


def test_many_jobs_are_stored_in_one_call_or_none(client: Client, queue: str) -> None:
    jobs = [{"payload": n, "due": timedelta(hours=1), "key": f"order-{n}"} for n in range(100)]
    assert {scheduled.result for scheduled in client.schedule_many(queue, jobs)} == {"created"}
    with pytest.raises(DqError, match="soon"):
        client.schedule_many(queue, [{"key": "another"}, {"due": "soon"}])
    assert client.request("GET", f"/v1/queues/{queue}")["scheduled"] == 100


def test_an_idempotency_key_stores_one_job(client: Client, queue: str) -> None:
    first, second = (client.schedule(queue, n, due="1h", idempotency_key="checkout-1") for n in (1, 2))
    assert first == second
    assert client.get(queue, first.id)["payload"]["json"] == 1


def test_other_requests(client: Client, queue: str) -> None:
    client.request("PUT", f"/v1/schedules/{queue}", {"queue": queue, "cron": "30 2 * * *", "tz": "Europe/Stockholm"})
    assert client.request("GET", f"/v1/schedules/{queue}?next=2")["cron"] == "30 2 * * *"


def test_a_delay_is_rounded_up_and_a_time_needs_a_zone(client: Client, queue: str) -> None:
    soon = client.schedule(queue, due=timedelta(days=20_000, microseconds=1))
    assert soon.due > datetime.now(timezone.utc) + timedelta(days=19_999)
    for wrong in (datetime(2090, 1, 1), timedelta(seconds=-1), "soon"):
        with pytest.raises(DqError) as raised:
            client.schedule(queue, due=wrong)
        assert raised.value.kind == "invalid input"


def test_errors_have_a_kind_and_a_remedy(server: Server, client: Client, queue: str) -> None:
    def kind_with(token: str, queue: str = queue) -> str:
        with Client(server.url, token) as client:
            return kind_of(lambda: client.schedule(queue))

    assert kind_with("a-wrong-token") == "unauthenticated"
    assert kind_with(WORKER_TOKEN) == "forbidden"
    assert kind_with(TOKEN, "a\nb") == "invalid input"
    for unknown in ("nobody", uuid4()):
        with pytest.raises(DqError) as raised:
            client.get(queue, unknown)
        assert raised.value.kind == "not found"
        assert raised.value.remedy
    assert kind_of(lambda: client.request("GET", "/v1/nothing")) == "not found"
    assert kind_of(lambda: client.schedule(queue, "x" * 3_000_000)) == "too large"


def test_an_unreachable_server_and_one_that_is_not_dq() -> None:
    with Client("http://127.0.0.1:1", TOKEN, retry_for=0) as client, pytest.raises(DqError) as raised:
        client.schedule("MAIL")
    assert raised.value.kind == "unavailable"
    response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
    with answering(response) as url, Client(url) as client, pytest.raises(DqError) as raised:
        client.schedule("MAIL")
    assert raised.value.kind == "unexpected answer"
    response = b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    with answering(response) as url, Client(url, retry_for=0) as client, pytest.raises(DqError) as raised:
        client.schedule("MAIL")
    assert raised.value.kind == "outcome unknown"


def test_the_second_address_answers(server: Server, queue: str) -> None:
    with Client(f"http://127.0.0.1:1, {server.url}/", TOKEN) as client:
        assert client.schedule(queue).result == "created"


def test_a_lost_answer_stores_one_job(server: Server, client: Client, queue: str) -> None:
    with dropping_the_first_answer(server) as url, Client(url, TOKEN) as unlucky:
        scheduled = unlucky.schedule(queue, due="1h")
    assert scheduled.result == "created"
    jobs = client.request("GET", f"/v1/queues/{queue}/jobs")["jobs"]
    assert [job["id"] for job in jobs] == [str(scheduled.id)]


def test_a_cancel_or_any_post_without_answer_is_not_repeated(server: Server, client: Client, queue: str) -> None:
    client.schedule(queue, due="1h", key="a")
    with dropping_the_first_answer(server) as url, Client(url, TOKEN) as unlucky:
        assert kind_of(lambda: unlucky.cancel(queue, "a")) == "outcome unknown"
    with dropping_the_first_answer(server) as url, Client(url, TOKEN) as unlucky:
        post = lambda: unlucky.request("post", f"/v1/queues/{queue}/jobs", {"payload": 1})  # noqa: E731
        assert kind_of(post) == "outcome unknown"
    with dropping_the_first_answer(server) as url, Client(url, TOKEN) as unlucky:
        assert unlucky.request("GET", f"/v1/queues/{queue}")["ready"] == 1


def test_async_client(server: Server, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(f"http://127.0.0.1:1,{server.url}", TOKEN) as client:
            scheduled = await client.schedule(queue, {"order": 1}, due="1h", key="order-1")
            many = await asyncio.gather(*(client.schedule(queue, due="1h") for _ in range(3)))
            assert len({job.id for job in many}) == 3
            assert (await client.get(queue, "order-1"))["id"] == str(scheduled.id)
            await client.reschedule(queue, "order-1", "2h")
            assert (await client.where(queue, "order-1"))["now"]["reason"] == "not_due"
            await client.cancel(queue, "order-1")
            with pytest.raises(DqError, match="order-1"):
                await client.cancel(queue, "order-1")

    asyncio.run(main())


@contextmanager
def listening(serve: object) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()  # type: ignore[arg-type]
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def answering(response: bytes) -> Iterator[str]:
    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(response)

    with listening(serve) as url:
        yield url


def pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)


@contextmanager
def dropping_the_first_answer(server: Server) -> Iterator[str]:
    """A proxy that closes its first connection when the server has answered."""
    host, port = server.address.split(":")

    def serve(listener: socket.socket) -> None:
        for drop in (True, False):
            try:
                connection, _ = listener.accept()
            except OSError:  # the client does not come back
                return
            with connection, socket.create_connection((host, int(port))) as upstream:
                threading.Thread(target=pump, args=(connection, upstream), daemon=True).start()
                answer = upstream.recv(65536)
                if not drop:
                    connection.sendall(answer)
                connection.shutdown(socket.SHUT_RDWR)

    with listening(serve) as url:
        yield url
