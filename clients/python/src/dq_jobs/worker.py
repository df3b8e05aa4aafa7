"""Workers claim due jobs and run their handlers."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import socket
import threading
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from datetime import datetime
from time import monotonic
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from .client import AsyncClient, Client, Delay, DqError, Due, encode, log, parse_time, text


class Outcome(Exception):
    """What becomes of a job: a handler returns or raises one of the following classes."""

    name = "done"

    def __init_subclass__(cls, name: str) -> None:
        cls.name = name

    def __init__(self, reason: str | None = None, **fields: Any) -> None:
        self.body = {"outcome": self.name, "reason": reason, **fields}


class Skip(Outcome, name="skipped"):
    """There was nothing to do."""


class Dead(Outcome, name="dead"):
    """No retry would help."""


class Release(Outcome, name="released"):
    """Hand a cancelled job back. It is due at once, and no attempt is used."""


class Snooze(Outcome, name="snoozed"):
    """Run it again later. No attempt is used."""

    def __init__(self, due: Due) -> None:
        super().__init__(delay=text(due))


class Throttle(Snooze, name="throttled"):
    """As `Snooze`, and no job of the queue starts before, in any worker."""


class Retry(Outcome, name="failed"):
    """The attempt failed, as after any other exception. `delay` is added to the queue's backoff."""

    def __init__(self, error: str, delay: Delay | None = None) -> None:
        super().__init__(error=error, delay=delay and text(delay))


class Again(Outcome, name="again"):
    """The job's next step: run it with another payload. Its attempts start again."""

    def __init__(self, payload: Any, due: Due = "now") -> None:
        super().__init__(delay=text(due), **encode(payload))


@dataclass(frozen=True)
class Job:
    """What a handler gets."""

    queue: str
    payload: Any = None  # bytes if it is not JSON
    key: str | None = None
    id: UUID | None = None
    attempt: int = 1
    max_attempts: int = 1
    token: int = 0  # larger with each delivery: a system that you write to can refuse smaller ones
    due: datetime | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    cancelled: threading.Event = field(default_factory=threading.Event)  # set if a function should raise an error


Handler: TypeAlias = Callable[[Job], Outcome | Awaitable[Outcome | None] | None]
H = TypeVar("H", bound=Handler)


class _Run:
    """A claimed job, until it is settled. Its lease `ends` by the monotonic clock, at 0 if it is lost."""

    coroutine: asyncio.Future[Outcome | None] | None = None
    outcome: Outcome

    def __init__(self, data: dict[str, Any], now: str, asked: float) -> None:
        given = {item.name: data[item.name] for item in fields(Job) if item.name in data}
        given |= {"id": UUID(data["id"]), "token": int(data["token"]), "due": parse_time(data["due"])}
        if "payload_base64" in data:
            given["payload"] = b64decode(data["payload_base64"])
        self.job, self.lease, self.loop = Job(**given), data["lease"], asyncio.get_running_loop()
        self.length = (parse_time(data["lease_ends"]) - parse_time(now)).total_seconds()
        self.ends = asked + self.length

    def lose(self, why: str) -> None:
        log.warning("%s/%s: the lease is lost: %s", self.job.queue, self.job.id, why)
        self.ends = 0.0
        self.loop.call_soon_threadsafe(self.cancel)

    def cancel(self) -> None:
        self.job.cancelled.set()
        if self.coroutine:
            self.coroutine.cancel()


class Worker:
    """Runs the jobs of all queues that have a handler, `concurrency` at once.

    A job of a process that died waits for a `lease`. At shutdown, handlers have `grace` seconds to end.
    """

    def __init__(
        self, url: str = "", token: str = "", *, concurrency: int = 10, lease: Delay | None = None, grace: float = 25.0
    ) -> None:
        self._concurrency, self._grace = concurrency, grace
        self._api, self._leases = AsyncClient(url, token, retry_for=float("inf")), Client(url, token, retry_for=1.0)
        self._claim = {"wait": "20s", "lease": lease and text(lease), "worker": f"{socket.gethostname()}-{os.getpid()}"}
        self._handlers: dict[str, Handler] = {}
        self._runs: dict[_Run, asyncio.Task[None]] = {}
        self._handled: list[_Run] = []
        self._settling = asyncio.Lock()
        self._stopping, self._ended = False, threading.Event()
        self._claiming: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(concurrency, "dq-jobs")

    def handler(self, queue: str) -> Callable[[H], H]:
        """Registers a function, which runs in a thread, or a coroutine function for the queue's jobs."""

        def register(handler: H) -> H:
            if self._handlers.setdefault(queue, handler) is not handler:
                raise ValueError(f"queue {queue} has another handler")
            return handler

        return register

    def run(self) -> None:
        """Runs jobs until SIGTERM or Ctrl-C."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        asyncio.run(self.run_async())

    def stop(self) -> None:
        """Makes `run_async` return when the running handlers have ended, or `grace` is over. Any thread may call it."""
        self._stopping = True
        if self._claiming and not self._claiming.done():
            loop, claiming = self._claiming.get_loop(), self._claiming  # jobs may be on their way
            loop.call_soon_threadsafe(lambda: loop.call_later(0.2, claiming.cancel))

    async def __aenter__(self) -> Worker:
        self._task = asyncio.create_task(self.run_async())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        await self._task

    async def run_async(self) -> None:
        """Runs jobs in your event loop, until `stop` or its cancellation. A worker runs once."""
        threading.Thread(target=self._keep_leases, daemon=True).start()
        self._claiming = asyncio.create_task(self._claim_jobs())
        try:
            [error] = await asyncio.gather(self._claiming, return_exceptions=True)
            if isinstance(error, Exception):
                log.error("the worker stops: %s", error)
                raise error
        finally:
            for seconds in (self._grace, 1.0):
                if self._runs:
                    await asyncio.wait(self._runs.values(), timeout=seconds)
                for run in self._runs:
                    run.cancel()
            self._ended.set()
            self._threads.shutdown(wait=False)
            await self._api.close()

    async def _claim_jobs(self) -> None:
        while not self._stopping:
            free = self._concurrency - len(self._runs)
            if not free:
                await asyncio.wait(self._runs.values(), return_when=asyncio.FIRST_COMPLETED)
                continue
            body = {**self._claim, "queues": dict.fromkeys(self._handlers, free), "max": free}
            asked = monotonic()
            answer = await self._api.request("POST", "/v1/claims", body, repeat=True, timeout=30.0)
            runs = [_Run(data, answer["now"], asked) for data in answer["jobs"]] if answer else []
            # The answer may be old: the process was suspended, or only waited for jobs.
            if old := [run for run in runs if run.ends - monotonic() < run.length / 2]:
                await asyncio.to_thread(self._renew, old)
            for run in runs:
                if run.ends > monotonic():
                    self._runs[run] = asyncio.create_task(self._run(run))

    async def _run(self, run: _Run) -> None:
        run.outcome = await self._handle(run)
        self._handled.append(run)
        async with self._settling:  # one request at a time
            if run in self._handled:  # else it has shared the request of another run
                batch, self._handled = self._handled[:1_000], self._handled[1_000:]
                await self._settle([run for run in batch if run.ends])
        del self._runs[run]

    async def _handle(self, run: _Run) -> Outcome:
        job, handler = run.job, self._handlers[run.job.queue]
        if inspect.iscoroutinefunction(handler):
            run.coroutine = asyncio.ensure_future(handler(job))
            [result] = await asyncio.gather(run.coroutine, return_exceptions=True)
        else:
            result = await run.loop.run_in_executor(self._threads, _call, handler, job)
        if result is None or isinstance(result, Outcome):
            return result or Outcome()
        if job.cancelled.is_set():  # it was told to stop
            return Release()
        if not isinstance(result, BaseException):
            result = TypeError(f"the handler returned {result!r:.99}, neither None nor an Outcome")
        log.warning("%s/%s: attempt %s failed", job.queue, job.id, job.attempt, exc_info=result)
        return Retry(f"{type(result).__name__}: {result}"[:10_000].encode(errors="backslashreplace").decode())

    async def _settle(self, runs: list[_Run]) -> None:
        """Repeats until the server answers or the leases have ended."""
        if not runs:
            return
        try:
            body = {"results": [{"lease": run.lease, **run.outcome.body} for run in runs]}
            left = max(run.ends for run in runs) - monotonic()
            answer = await self._api.request("POST", "/v1/leases:settle", body, repeat=True, retry_for=left)
            results: list[Any] = answer["results"]
        except Exception as error:
            if isinstance(error, DqError) and error.is_temporary:
                return log.error("%s jobs may run again: %s", len(runs), error)
            if len(runs) > 1:  # one has a wrong form, or they are too large together
                for run in runs:
                    await self._settle([run])
                return
            results = [{"result": "refused", "error": {"detail": ascii(error)}}]
        for run, result in zip(runs, results, strict=True):
            if result["result"] == "settled":
                continue
            why = result.get("why") or result["error"]["detail"]
            log.error("%s/%s is not %s: %s", run.job.queue, run.job.id, run.outcome.name, why)
            if result["result"] == "refused" and not isinstance(run.outcome, Retry):
                run.outcome = Retry(why)
                await self._settle([run])

    def _keep_leases(self) -> None:
        """Runs in a thread of its own, so that a handler may block the event loop."""
        while not self._ended.wait(0.2):
            held = [run for run in list(self._runs) if run.ends]
            if any(run.ends - monotonic() < run.length * 2 / 3 for run in held):
                self._renew(held)
        self._leases.close()

    def _renew(self, runs: list[_Run]) -> None:
        body, sent = {"leases": [run.lease for run in runs]}, monotonic()
        try:
            answers = self._leases.request("POST", "/v1/leases:renew", body, repeat=True, timeout=3.0)["leases"]
        except DqError as error:
            log.warning("a renewal of leases has failed: %s", error)
            for run in runs:
                if run.ends < monotonic():
                    run.lose("expired")
            return
        for run, answer in zip(runs, answers, strict=True):
            if answer["result"] == "renewed":
                run.ends = sent + run.length
            else:
                run.lose(answer.get("why") or answer["error"]["detail"])


def _call(handler: Handler, job: Job) -> Any:
    try:
        return handler(job)
    except (Exception, SystemExit) as error:  # a future cannot hold a StopIteration
        return error
