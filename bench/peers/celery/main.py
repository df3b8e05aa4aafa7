"""Stores and runs jobs with Celery; see ../README.md for the arguments and the output."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

from celery import Celery

CONCURRENCY = 16
# Each caller waits for its reply; Celery has no call for several tasks.
BULK_CALLERS = 16

command, address, *numbers = sys.argv[1:]
app = Celery("peer", broker=f"redis://{address}/0")
app.conf.update(
    # A task of a killed worker is delivered again, as Celery's guide recommends for reliability.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_pool_limit=BULK_CALLERS,
)
sleep = float(numbers[0]) / 1000 if command == "work" else 0.0
lock = threading.Lock()


@app.task(name="job")
def run(number, due):
    started = time.time_ns() // 1000
    if sleep:
        time.sleep(sleep)
    with lock:
        sys.__stdout__.write(f"{number} {due} {started}\n")
        sys.__stdout__.flush()


def store(count, how, first, rate):
    def call(number):
        due = first + (number * 1000 // rate if rate else 0) if first else 0
        if due:
            eta = datetime.fromtimestamp(due / 1000, timezone.utc)
            run.apply_async((number, due), eta=eta)
        else:
            run.apply_async((number, time.time_ns() // 1_000_000))

    started = time.perf_counter()
    if how == "bulk":
        with ThreadPoolExecutor(BULK_CALLERS) as pool:
            for _ in pool.map(call, range(count)):
                pass
    else:
        for number in range(count):
            call(number)
    print(time.perf_counter() - started)


if command == "store":
    store(int(numbers[0]), numbers[1], int(numbers[2]), int(numbers[3]))
else:
    arguments = ["worker", "--pool=threads", f"--concurrency={CONCURRENCY}"]
    app.worker_main(arguments + ["--loglevel=ERROR", "--without-gossip", "--without-mingle"])
