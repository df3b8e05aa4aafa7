"""Runs jobs with our client for Python; see ../README.md for the arguments and the output."""

import sys
import threading
import time

from dq_jobs import Worker

_, address, millis = sys.argv[1:]
worker = Worker(address, concurrency=16)
sleep = int(millis) / 1000
lock = threading.Lock()


@worker.handler("JOBS")
def run(job):
    started = time.time_ns() // 1000
    if sleep:
        time.sleep(sleep)
    with lock:
        print(job.payload["id"], job.payload["due"], started, flush=True)


worker.run()
