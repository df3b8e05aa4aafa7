"""Workers that note when each run starts and ends. Arguments: address, token, file, lease in ms, workers, concurrency."""

import asyncio
import os
import sys
import threading
import time

from dq_jobs import Again, Job, Worker

url, token, file, lease, count, concurrency = sys.argv[1:]
log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(event: str, job: Job) -> None:
    os.write(log, f"{event} {job.id} {job.token} {time.time_ns() // 1_000_000}\n".encode())


async def handle(job: Job) -> None:
    note("start", job)
    await asyncio.sleep(job.payload["work"] / 1000)
    if job.payload["plan"] == "fail" and job.attempt == 1:
        raise RuntimeError("as planned")
    note("end", job)
    if job.payload["plan"] == "again":
        raise Again({"work": job.payload["work"], "plan": "done"})


def end_with_the_parent() -> None:
    sys.stdin.read()
    os._exit(1)


async def main() -> None:
    workers = [Worker(url, token, concurrency=int(concurrency), lease=f"{lease}ms") for _ in range(int(count))]
    for worker in workers:
        for queue in ("A", "B"):
            worker.handler(queue)(handle)
    await asyncio.gather(*(worker.run_async() for worker in workers))


threading.Thread(target=end_with_the_parent, daemon=True).start()
asyncio.run(main())
