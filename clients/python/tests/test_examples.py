"""The example and the README do what they say."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from conftest import TOKEN, Server, eventually
from standardwebhooks import Webhook

from dq_jobs import Client

ROOT = Path(__file__).parents[1]


def environment(server: Server) -> dict[str, str]:
    return {**os.environ, "DQ_API": server.url, "DQ_TOKEN": TOKEN, "PAY_WITHIN": "1s"}


def test_an_order_closes_itself_unless_it_is_paid(own_server: Server) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "unpaid_orders:app", "--port", str(port), "--log-level", "warning"]
    with subprocess.Popen(command, cwd=ROOT / "examples", env=environment(own_server)) as shop:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=httpx.HTTPTransport(retries=8)) as http:
                for order in (1, 2):
                    assert http.post(f"/orders/{order}").json() == {"status": "open"}
                assert http.post("/orders/2/payment").json() == {"status": "paid"}
                eventually(lambda: http.get("/orders/1").json() == {"status": "closed"})
                assert http.get("/orders/2").json() == {"status": "paid"}
                assert http.post("/orders/1/payment").status_code == 409
            with Client(own_server.url, TOKEN) as client:
                ended = client.request("GET", "/v1/queues/ORDER_TIMEOUT/jobs?state=ended")["jobs"]
            assert sorted((job["key"], job["ended"]["ending"]) for job in ended) == [
                ("order-1", "done"),
                ("order-2", "cancelled"),
            ]
            shop.send_signal(signal.SIGTERM)
            shop.wait(10)
        finally:
            shop.kill()


def readme_block(title: str) -> str:
    text = (ROOT / "README.md").read_text()
    found = re.search(rf"```python\n(# {re.escape(title)}\n.*?)```", text, re.DOTALL)
    assert found, f"README.md has no block {title}"
    return found[1]


def test_quick_start(own_server: Server, tmp_path: Path) -> None:
    program = tmp_path / "hello.py"
    program.write_text(readme_block("hello.py"))
    command = [sys.executable, "-u", str(program)]
    with subprocess.Popen(command, env=environment(own_server), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert "Hello, Ann!" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
        finally:
            process.kill()


def test_readme_blocks_compile_and_a_webhook_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "README.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        compile(block, "README.md", "exec")
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    monkeypatch.setenv("BILLING_WEBHOOK_SECRET", secret)
    names: dict[str, object] = {}
    exec(readme_block("webhooks.py"), names)
    from datetime import datetime, timezone

    now = datetime.now(timezone.utc)
    headers = {
        "webhook-id": "1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign("1", now, '{"order": 17}'),
    }
    verify = names["verify"]
    assert callable(verify)
    assert verify(b'{"order": 17}', headers) == {"order": 17}
    with pytest.raises(Exception, match="signature"):
        verify(b'{"order": 18}', headers)
