import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer as createWeb } from "node:http";
import { type AddressInfo, connect, createServer } from "node:net";
import { after, before, test } from "node:test";
import { Client, DqError } from "dq-jobs";
import { MAILER, OPERATOR, Server, freePort } from "./support.js";

let server: Server;
let client: Client;
before(async () => {
  server = await Server.start();
  client = server.client();
});
after(() => server.remove());

test("a job is scheduled, seen, moved and cancelled by its key", async () => {
  const job = { key: "user 1/ö" };
  const at = new Date("2100-01-31T10:30:00Z");
  const scheduled = await client.schedule("SEEN", { a_b: 1 }, { ...job, at, group: "g" });
  assert.deepEqual([scheduled.result, scheduled.due], ["created", "2100-01-31T10:30:00.000Z"]);
  const seen = await client.get("SEEN", job);
  assert.deepEqual([seen.id, seen.key, seen.state], [scheduled.id, job.key, "scheduled"]);
  await client.reschedule("SEEN", job, { delay: "1h 30m" });
  await client.reschedule("SEEN", job, { at: "2100-02-01T00:00:00Z" });
  const where = await client.where("SEEN", job);
  assert.equal(where.now?.reason, "not_due");
  assert.ok("in_ms" in where.now!);
  assert.equal(where.events[0]?.event, "scheduled");
  await client.cancel("SEEN", scheduled.id);
  assert.equal((await client.get("SEEN", scheduled.id)).ended?.ending, "cancelled");
});

test("a key says what becomes of a second job", async () => {
  const schedule = (payload: unknown, options = {}) =>
    client.schedule("KEYS", payload, { key: "k", delay: "1h", ...options });
  const first = await schedule(1);
  assert.deepEqual(await schedule(2), { ...first, result: "kept" });
  const third = await schedule(3, { onConflict: "replace", delay: "2h" });
  assert.equal(third.result, "replaced");
});

test("calls with one idempotency key store one job", async () => {
  const options = { delay: "1h", idempotencyKey: "checkout-1", remember: "1d" };
  const first = await client.schedule("ONCE", 1, options);
  assert.deepEqual(await client.schedule("ONCE", 1, options), first);
});

test("many jobs are answered in their order", async () => {
  const jobs = Array.from({ length: 50 }, (_, i) => ({ payload: i, key: `${i}`, delay: "1h" }));
  const scheduled = await client.scheduleMany("MANY", jobs);
  for (const i of [0, 19, 20, 49])
    assert.equal((await client.get("MANY", { key: `${i}` })).id, scheduled[i]!.id);
});

test("errors have a kind and a remedy", async () => {
  const rejects = async (call: Promise<unknown>, kind: string, text: RegExp, remedy?: RegExp) => {
    const error = await call.then(
      () => assert.fail(text.source),
      (error: unknown) => error,
    );
    assert.ok(error instanceof DqError, String(error));
    assert.equal(error.kind, kind);
    assert.match(error.message, text);
    if (remedy) assert.match(error.remedy!, remedy);
  };
  const unknown = { key: "nobody" };
  await rejects(client.get("MANY", unknown), "not found", /key:nobody/, /history/);
  await rejects(client.cancel("MANY", unknown), "not found", /key:nobody/);
  await rejects(client.reschedule("MANY", unknown, { delay: 1 }), "not found", /key:nobody/);
  await rejects(client.get("MANY", "../x"), "invalid input", /is not a job id/, /key:/);
  await rejects(client.schedule("MANY", 1, { delay: "soon" }), "invalid input", /soon/);
  const misspelt = { dellay: "1h" } as object;
  await rejects(client.schedule("MANY", 1, misspelt), "invalid input", /dellay/);
  await rejects(server.client("wrong").get("Q", "x"), "unauthenticated", /token/, /Bearer/);
  await rejects(server.client(MAILER).schedule("MAIL", 1), "forbidden", /yours is worker/);
});

test("a cancel says that the job runs, or that there is none", async () => {
  const { id } = await client.schedule("BUSY", 1, { key: "k" });
  await client.request("POST", "/v1/claims", { body: { queues: { BUSY: 1 } } });
  const body = { payload: 2, key: "k" };
  const second = await client.request("POST", "/v1/queues/BUSY/jobs", { body });
  assert.equal(second.result, "already_running");
  await assert.rejects(client.cancel("BUSY", { key: "k" }), { kind: "conflict" });
  await assert.rejects(client.cancel("BUSY", id), { kind: "conflict" });
  await assert.rejects(client.reschedule("BUSY", id, { delay: 1 }), { kind: "conflict" });
  await assert.rejects(client.cancel("BUSY", { key: "other" }), { kind: "not found" });
});

test("a cancel or any POST whose answer is lost is not repeated", async () => {
  const { id } = await client.schedule("CUT", 1, { delay: "1h" });
  const cancel = await cuttingProxy();
  await assert.rejects(cancel.cutOff.cancel("CUT", id), { kind: "outcome unknown" });
  assert.equal((await client.get("CUT", id)).ended?.ending, "cancelled");
  const post = await cuttingProxy();
  const call = post.cutOff.request("post", "/v1/queues/CUT/jobs", { body: { payload: 1 } });
  await assert.rejects(call, { kind: "outcome unknown" });
  for (const { proxy } of [cancel, post]) proxy.close();
});

test("a lost answer of a schedule call does not store two jobs", async () => {
  const { proxy, cutOff } = await cuttingProxy();
  const { id } = await cutOff.schedule("LOST", 1, { delay: "1h" });
  const { jobs } = await client.request("GET", "/v1/queues/LOST/jobs");
  assert.deepEqual(
    jobs.map((job: { id: string }) => job.id),
    [id],
  );
  proxy.close();
});

test("a request above 2 MB is not sent", async () => {
  const large = client.schedule("LARGE", "x".repeat(3_000_000));
  await assert.rejects(large, { kind: "too large", message: /2 MB/ });
});

/** Delivers the first request, and cuts the connection before its answer. */
async function cuttingProxy() {
  let cut = 0;
  const proxy = createServer((from) => {
    const to = connect(server.port, "127.0.0.1");
    for (const socket of [from, to]) socket.on("error", () => {});
    from.pipe(to);
    to.on("data", (data) => (cut++ === 0 ? from.destroy() : from.write(data)));
    from.on("close", () => to.destroy());
  }).listen(0, "127.0.0.1");
  await once(proxy, "listening");
  const { port } = proxy.address() as AddressInfo;
  return { proxy, cutOff: new Client({ url: `http://127.0.0.1:${port}/`, token: OPERATOR }) };
}

test("a call ends when its signal is aborted, or its time is over", async () => {
  const nobody = new Client({ url: `http://127.0.0.1:${await freePort()}`, token: "x" });
  await assert.rejects(nobody.get("Q", "x", { retryFor: 0 }), {
    kind: "unavailable",
    message: /no answer from http.*\/jobs\/x: .*ECONNREFUSED/,
  });
  const stop = new AbortController();
  const call = nobody.get("Q", "x", { signal: stop.signal, retryFor: 60_000 });
  stop.abort(new Error("enough"));
  await assert.rejects(call, /enough|abort/);
  const silent = createServer().listen(0, "127.0.0.1");
  await once(silent, "listening");
  const slow = new Client({ url: `http://127.0.0.1:${(silent.address() as AddressInfo).port}` });
  const late = slow.request("GET", "/v1/queues/ECONNREFUSED", { timeout: 1, retryFor: 0 });
  await assert.rejects(late, { kind: "outcome unknown" });
  silent.close();
});

test("an answer from something else is an error", async () => {
  const web = createWeb((request, response) => {
    response.writeHead(request.url === "/v1/queues/Q/jobs/bad" ? 502 : 200);
    response.end("<html>");
  });
  await once(web.listen(0, "127.0.0.1"), "listening");
  const other = new Client({ url: `http://127.0.0.1:${(web.address() as AddressInfo).port}` });
  await assert.rejects(other.get("Q", "page"), { kind: "unexpected answer" });
  await assert.rejects(other.get("Q", "bad", { retryFor: 0 }), { kind: "outcome unknown" });
  web.close();
});
