// A web shop whose unpaid orders close themselves after 15 minutes.
//
//   curl -X POST http://127.0.0.1:3000/orders         # {"id":"…","state":"unpaid"}
//   curl -X POST http://127.0.0.1:3000/orders/…/pay   # {"id":"…","state":"paid"}
//   curl         http://127.0.0.1:3000/orders/…
import { randomUUID } from "node:crypto";
import type { AddressInfo } from "node:net";
import express from "express";
import { Client, DqError, Worker, shutdownSignal, skip } from "dq-jobs";

interface Order {
  id: string;
  state: "unpaid" | "paid" | "closed";
}

/** In place of your database. */
const orders = new Map<string, Order>();

/** Sets the final state of an unpaid order: one atomic statement in a database. */
function change(id: string, state: "paid" | "closed"): boolean {
  const order = orders.get(id);
  if (order?.state !== "unpaid") return false;
  order.state = state;
  return true;
}

const dq = new Client();
const worker = new Worker().handle<{ id: string }>("ORDER_TIMEOUT", ({ payload }) => {
  if (!change(payload.id, "closed")) return skip("paid");
  console.log(`order ${payload.id} is closed: not paid in time`);
});

const app = express();

app.post("/orders", async (_, response) => {
  const order: Order = { id: randomUUID(), state: "unpaid" };
  // First the timeout: if the order is never stored, its job finds nothing to close.
  const delay = process.env.PAY_WITHIN ?? "15m";
  await dq.schedule("ORDER_TIMEOUT", { id: order.id }, { delay, key: order.id });
  orders.set(order.id, order);
  response.status(201).location(`/orders/${order.id}`).json(order);
});

app.get("/orders/:id", (request, response) => {
  const order = orders.get(request.params.id);
  response.status(order ? 200 : 404).json(order ?? { error: "there is no such order" });
});

app.post("/orders/:id/pay", async (request, response) => {
  const { id } = request.params;
  if (!change(id, "paid")) {
    response.status(409).json({ error: `order ${id} is ${orders.get(id)?.state ?? "unknown"}` });
    return;
  }
  // Optional, because the timeout skips a paid order anyway.
  await dq
    .cancel("ORDER_TIMEOUT", { key: id })
    .catch((error: DqError) => console.warn(error.message));
  response.json(orders.get(id));
});

const stop = shutdownSignal();
const server = app.listen(Number(process.env.PORT ?? 3000), "127.0.0.1", () =>
  console.log(`listening on http://127.0.0.1:${(server.address() as AddressInfo).port}`),
);
stop.addEventListener("abort", () => server.close());
await worker.run(stop);
