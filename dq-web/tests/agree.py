"""Sends requests to a dq server by its OpenAPI document, and judges the answers. Arguments: the address
and a token."""

import sys

import schemathesis
from hypothesis import strategies
from schemathesis.cli import schemathesis as run

# The forms that the document names and no pattern can have.
CRON = ["* * * * *", "30 2 * * *", "*/5 0-12 1,15 * MON-FRI", "0 9 31 12 *", "15 23 * JAN SUN"]
ZONES = ["UTC", "Europe/Stockholm", "America/New_York", "Asia/Shanghai"]
schemathesis.openapi.format("cron", strategies.sampled_from(CRON))
schemathesis.openapi.format("time-zone", strategies.sampled_from(ZONES))

address, token = sys.argv[1:]
run(
    [
        "run",
        f"{address}/openapi.json",
        f"--header=Authorization: Bearer {token}",
        "--checks=all",
        # It sends requests without the token, which is most of the time; other tests do that.
        "--exclude-checks=ignored_auth",
        # A claim waits up to a minute for a job; `work.rs` tests its fields.
        "--exclude-path=/v1/claims",
        "--phases=examples,coverage,fuzzing",
        "--max-examples=10",
        "--generation-deterministic",
        "--continue-on-failure",
        "--no-color",
    ]
)
