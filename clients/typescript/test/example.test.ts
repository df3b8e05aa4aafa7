import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { OPERATOR, Server, lineOf } from "./support.js";

test("the order that closes itself, unless paid", async () => {
  const server = await Server.start();
  const env = {
    ...process.env,
    DQ_API: server.url,
    DQ_TOKEN: OPERATOR,
    PORT: "0",
    PAY_WITHIN: "2s",
  };
  const example = fileURLToPath(new URL("../examples/order-timeout.js", import.meta.url));
  const shop = spawn(process.execPath, [example], { env, stdio: ["ignore", "pipe", "inherit"] });
  const url = (await lineOf(shop, "listening")).split(" ").at(-1)!;
  const call = async (method: string, path: string) =>
    (await (await fetch(url + path, { method })).json()) as { id: string; state: string };

  const paid = await call("POST", "/orders");
  assert.equal((await call("POST", `/orders/${paid.id}/pay`)).state, "paid");
  const unpaid = await call("POST", "/orders");
  await lineOf(shop, `order ${unpaid.id} is closed`);
  assert.equal((await call("GET", `/orders/${unpaid.id}`)).state, "closed");
  assert.equal((await call("GET", `/orders/${paid.id}`)).state, "paid");
  const timeout = await server.client().get("ORDER_TIMEOUT", { key: paid.id });
  assert.equal(timeout.ended?.ending, "cancelled");

  shop.kill("SIGTERM");
  await once(shop, "exit");
  await server.remove();
});
