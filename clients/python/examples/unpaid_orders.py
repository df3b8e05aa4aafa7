"""A shop whose orders close themselves after 15 minutes, unless they are paid.

DQ_API and DQ_TOKEN say where `dq serve` is. Run it with `uvicorn unpaid_orders:app`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from dq_jobs import AsyncClient, DqError, Job, Outcome, Skip, Worker

PAY_WITHIN = os.environ.get("PAY_WITHIN", "15m")

orders: dict[int, str] = {}  # your database
dq = AsyncClient()
worker = Worker()


@worker.handler("ORDER_TIMEOUT")
async def close_unpaid_order(job: Job) -> Outcome | None:
    order: int = job.payload["order"]
    if orders.get(order) != "open":
        return Skip("paid")
    orders[order] = "closed"
    return None


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with dq, worker:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{order}")
async def place(order: int) -> dict[str, str]:
    orders[order] = "open"
    await dq.schedule("ORDER_TIMEOUT", {"order": order}, due=PAY_WITHIN, key=f"order-{order}")
    return {"status": "open"}


@app.post("/orders/{order}/payment")
async def pay(order: int) -> dict[str, str]:
    if orders.get(order) != "open":
        raise HTTPException(409, f"order {order} is {orders.get(order, 'unknown')}")
    orders[order] = "paid"
    try:
        await dq.cancel("ORDER_TIMEOUT", f"order-{order}")
    except DqError as error:  # such as a `conflict`: the job runs, and finds that the order is paid
        print(error)
    return {"status": "paid"}


@app.get("/orders/{order}")
async def status(order: int) -> dict[str, str]:
    return {"status": orders.get(order, "unknown")}
