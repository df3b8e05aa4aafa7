"""Clients schedule, find and change jobs."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import os
import random
import time
from base64 import b64encode
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar, cast
from urllib.parse import quote
from uuid import UUID, uuid4

import httpx

P = ParamSpec("P")
T = TypeVar("T")
Delay: TypeAlias = timedelta | str  # such as timedelta(minutes=15) or "15m"
Due: TypeAlias = Delay | datetime
log = logging.getLogger("dq_jobs")


class DqError(Exception):
    """A failed request. `kind` is such as `not found`, `conflict` or `unavailable`; `remedy` says what to do."""

    def __init__(self, kind: str, detail: str, remedy: str | None = None) -> None:
        super().__init__(f"{detail} ({remedy})" if remedy else detail)
        self.kind, self.remedy = kind, remedy
        # The server is away. After `outcome unknown`, it may have done what it was asked.
        self.is_temporary = kind in ("unavailable", "closed", "outcome unknown")


@dataclass(frozen=True)
class Scheduled:
    """The answer to `schedule`. The call has stored the job only if it is `created` or `replaced`."""

    result: Literal["created", "replaced", "kept", "ended", "already_running"]
    id: UUID
    due: datetime


class AsyncClient(AbstractAsyncContextManager["AsyncClient"]):
    """Schedules, finds and changes jobs, each named by its key or its id.

    `url` may list several servers of one store: `http://a:7373,http://b:7373`. By default, it is `$DQ_API`.
    While the server is away, a call is repeated for `retry_for` seconds.
    """

    _connect: Any = httpx.AsyncClient
    _sleep: Any = staticmethod(asyncio.sleep)

    def __init__(self, url: str = "", token: str = "", *, retry_for: float = 10.0) -> None:
        urls = url or os.environ.get("DQ_API") or "http://127.0.0.1:7373"
        self._urls = [address.strip().rstrip("/") for address in urls.split(",")]
        token = token or os.environ.get("DQ_TOKEN", "")
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
        self._http = self._connect(headers=headers)
        self._retry_for = retry_for

    async def schedule(
        self,
        queue: str,
        payload: Any = None,
        *,
        due: Due = "now",
        key: str | None = None,
        on_conflict: Literal["keep", "replace", "earliest", "latest"] = "keep",
        on_running: Literal["refuse", "detach"] = "refuse",
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        max_attempts: int | None = None,
        content_type: str | None = None,
        idempotency_key: str | None = None,
    ) -> Scheduled:
        """Stores a job. The payload is JSON or bytes.

        Only one waiting or running job of a queue has a `key`. All calls with an `idempotency_key` store one job.
        """
        job = {"payload": payload, "due": due, "key": key, "on_conflict": on_conflict, "on_running": on_running}
        job |= {"group": group, "headers": headers, "max_attempts": max_attempts}
        job |= {"content_type": content_type, "idempotency_key": idempotency_key}
        return (await self.schedule_many(queue, [job]))[0]

    async def schedule_many(self, queue: str, jobs: Iterable[Mapping[str, Any]]) -> list[Scheduled]:
        """Stores up to 1,000 jobs, given by the arguments of `schedule`. One invalid job prevents all."""
        body = {"jobs": [_job(**job) for job in jobs]}
        results = (await self.request("POST", _path(queue) + ":schedule", body, repeat=True))["results"]
        return [Scheduled(job["result"], UUID(job["id"]), parse_time(job["due"])) for job in results]

    async def cancel(self, queue: str, job: str | UUID) -> None:
        """Cancels a waiting job. Raises `conflict` if it runs, `not found` if none waits."""
        await self.request("DELETE", _path(queue, job))

    async def reschedule(self, queue: str, job: str | UUID, due: Due) -> None:
        """Moves a waiting job. Raises as `cancel` does."""
        await self.request("PATCH", _path(queue, job), {"due": text(due)})

    async def get(self, queue: str, job: str | UUID) -> dict[str, Any]:
        """A job's state, times, attempts, last error, headers and payload."""
        return dict(await self.request("GET", _path(queue, job)))

    async def where(self, queue: str, job: str | UUID) -> dict[str, Any]:
        """A job's past in `events`, and in `now` the `reason` why it waits."""
        return dict(await self.request("GET", _path(queue, job) + "/timeline"))

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        repeat: bool | None = None,
        timeout: float = 10.0,
        retry_for: float | None = None,
    ) -> Any:
        """Sends any request of the HTTP API.

        `repeat` says whether to send it again after a lost answer. By default, only a GET, HEAD, PUT or PATCH is.
        """
        if repeat is None:
            repeat = method.upper() in ("GET", "HEAD", "PUT", "PATCH")
        content = b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
        if len(content) > 2_000_000:  # the server would close the connection
            raise DqError("too large", f"the request has {len(content)} bytes")
        end = time.monotonic() + (self._retry_for if retry_for is None else retry_for)
        pause = 0.1
        while True:
            url = self._urls[0]
            try:
                return _parse(await _done(self._http.request(method, url + path, content=content, timeout=timeout)))
            except httpx.TransportError as cause:
                is_unsent = isinstance(cause, (httpx.ConnectError, httpx.ConnectTimeout))
                kind = "unavailable" if is_unsent else "outcome unknown"
                error = DqError(kind, f"{url}: {cause!r}", "is it the address of `dq serve`?")
            except DqError as answer:
                error = answer
            is_ambiguous = error.kind == "outcome unknown" and not repeat
            if not error.is_temporary or is_ambiguous or time.monotonic() + pause > end:
                raise error
            log.warning("%s %s is repeated: %s", method, path, error)
            if self._urls[0] == url:  # else another call has passed to the next server
                self._urls = self._urls[1:] + self._urls[:1]
            await _done(self._sleep(pause * random.uniform(0.5, 1.0)))
            pause = min(2 * pause, 5.0)

    async def close(self) -> None:
        await _done(self._http.aclose() if isinstance(self._http, httpx.AsyncClient) else self._http.close())

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _BlockingClient(AsyncClient):
    """Its methods never suspend, so `_blocking` runs them without an event loop."""

    _connect, _sleep = httpx.Client, staticmethod(time.sleep)


async def _done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            method(self._client, *args, **kwargs).send(None)
        except StopIteration as end:
            return cast(T, end.value)
        raise AssertionError("a blocking call has waited")

    return call


class Client(AbstractContextManager["Client"]):
    """`AsyncClient` for programs without asyncio. Threads may share it."""

    def __init__(self, url: str = "", token: str = "", *, retry_for: float = 10.0) -> None:
        self._client = _BlockingClient(url, token, retry_for=retry_for)

    schedule = _blocking(AsyncClient.schedule)
    schedule_many = _blocking(AsyncClient.schedule_many)
    cancel = _blocking(AsyncClient.cancel)
    reschedule = _blocking(AsyncClient.reschedule)
    get = _blocking(AsyncClient.get)
    where = _blocking(AsyncClient.where)
    request = _blocking(AsyncClient.request)
    close = _blocking(AsyncClient.close)

    def __exit__(self, *_: object) -> None:
        self.close()


def text(due: Due) -> str:
    if isinstance(due, timedelta):  # rounded up: a job is never early
        return f"{due.days}d {due.seconds}s {-(-due.microseconds // 1000)}ms"
    return due.isoformat() if isinstance(due, datetime) else due


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 does not read the Z


def encode(payload: Any) -> dict[str, Any]:
    return {"payload_base64": b64encode(payload).decode()} if isinstance(payload, bytes) else {"payload": payload}


def _job(*, payload: Any = None, due: Due = "now", idempotency_key: str | None = None, **options: Any) -> Any:
    # By default a key for the retries of this call, so the server need not remember it for long.
    names = {"idempotency_key": idempotency_key or str(uuid4()), "remember": None if idempotency_key else "10m"}
    names |= {"due": text(due)} | options
    return encode(payload) | {name: value for name, value in names.items() if value is not None}


def _path(queue: str, *job: str | UUID) -> str:
    names = [f"{name}" if isinstance(name, UUID) else f"key:{quote(name, safe='')}" for name in job]
    return "/".join(["/v1/queues", quote(queue, safe=""), "jobs", *names])


def _parse(response: httpx.Response) -> Any:
    if response.status_code == 204:
        return None
    is_json = "json" in response.headers.get("content-type", "")
    body: Any = response.json() if is_json else {}
    if is_json and (response.is_success or "result" in body):  # a 409 with a result: the key's job is running
        return body
    if "title" not in body:  # not from `dq serve`
        kind = "outcome unknown" if response.status_code in (502, 503, 504) else "unexpected answer"
        raise DqError(kind, f"{response.url} answered {response.status_code}")
    raise DqError(body["title"], body["detail"], body.get("remedy"))
