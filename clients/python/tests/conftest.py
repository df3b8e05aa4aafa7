"""A real `dq serve` on SQLite in a temporary directory, and workers in threads of the test."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import httpx
import pytest

from dq_jobs import Client, Worker

TOKEN = "an-operators-token"
WORKER_TOKEN = "a-workers-token-for-mail"
CONFIGURATION = f"""
[backend]
type = "sqlite"
path = "jobs.db"

[defaults]
max_attempts = 3
backoff = {{ initial = "100ms", factor = 1.0, jitter = 0.0 }}

[serve.tokens.shop]
role = "operator"
token = "{TOKEN}"

[serve.tokens.mailer]
role = "worker"
queues = ["MAIL"]
token = "{WORKER_TOKEN}"
"""


def dq_binary() -> str:
    """`DQ_BIN`, or a build of this repository."""
    built = Path(__file__).parents[3] / "target" / "debug" / "dq"
    binary = os.environ.get("DQ_BIN") or (str(built) if built.exists() else shutil.which("dq"))
    if not binary:
        pytest.exit("no dq binary: run `cargo build -p dq-cli`, or set DQ_BIN to one", returncode=2)
    return binary


class Server:
    """`dq serve`, which can be killed and started again at the same address."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{self.address}"
        (directory / "dq.toml").write_text(CONFIGURATION)
        self.start()

    def start(self) -> None:
        output = (self.directory / "output").open("ab")
        command = [dq_binary(), "serve", "--address", self.address]
        self.process = subprocess.Popen(command, cwd=self.directory, stdout=output, stderr=output)
        eventually(self._answers)

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self.directory / "output").read_text()
        try:
            return httpx.get(f"{self.url}/healthz").is_success
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Running:
    """Runs a worker in a thread, until the end of the block has drained it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            asyncio.run(self.worker.run_async())
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        self.worker.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()
        if kind is None and self.error:
            raise self.error


def eventually(condition: Callable[[], bool]) -> None:
    """For states of other processes that nobody announces."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for all tests that use queues of their own."""
    server = Server(tmp_path_factory.mktemp("dq"))
    yield server
    server.kill()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server that the test may kill."""
    server = Server(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, TOKEN) as client:
        yield client


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue of the test's own."""
    return str(request.node.name)
