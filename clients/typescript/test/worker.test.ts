import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { type AddressInfo, connect, createServer } from "node:net";
import { after, before, test } from "node:test";
import { type Job, Worker, again, dead, fail, skip, snooze, throttle } from "dq-jobs";
import { MAILER, OPERATOR, Server, during, freePort, lineOf, signal } from "./support.js";

let server: Server;
before(async () => void (server = await Server.start()));
after(() => server.remove());

test("a job fires when it is due, with what was scheduled", async () => {
  const ran = signal<Job>();
  await during(server.worker().handle("FIRES", ran.resolve), async () => {
    const options = { delay: 300, key: "order-1", headers: { origin: "test" }, maxAttempts: 3 };
    const scheduled = await server.client().schedule("FIRES", { order_id: 1 }, options);
    const job = await ran.promise;
    assert.ok(Date.now() >= Date.parse(scheduled.due), "not early");
    assert.equal(job.id, scheduled.id);
    assert.deepEqual(job.payload, { order_id: 1 });
    assert.deepEqual([job.queue, job.key, job.due], ["FIRES", "order-1", scheduled.due]);
    assert.deepEqual([job.attempt, job.maxAttempts, job.step], [1, 3, 0]);
    assert.equal(job.headers.origin, "test");
    assert.match(job.token, /^\d+$/);
  });
});

test("a job of a worker that only has a token for its queue", async () => {
  const ran = signal<Job>();
  const worker = server.worker({ token: MAILER }).handle("MAIL", ran.resolve);
  await during(worker, async () => {
    await server.client().schedule("MAIL", null);
    assert.equal((await ran.promise).payload, null);
  });
});

test("a failed attempt is retried after its delay, until the last", async () => {
  const client = server.client();
  const times: number[] = [];
  const last = signal();
  const worker = server.worker().handle("FAILS", (job) => {
    times.push(performance.now());
    if (job.attempt === job.maxAttempts) last.resolve();
    if (job.attempt === 1) throw fail(new Error("busy"), "400ms");
    throw new TypeError("broken", { cause: new Error("the wire") });
  });
  let id = "";
  await during(worker, async () => {
    ({ id } = await client.schedule("FAILS", 1, { maxAttempts: 3 }));
    await last.promise;
  });
  assert.equal(times.length, 3);
  assert.ok(times[1]! - times[0]! >= 400, `${times}`);
  const job = await client.get("FAILS", id);
  assert.equal(job.state, "dead");
  assert.match(job.dead!.message, /TypeError: broken: Error: the wire/);
});

test("each outcome leads to what it says", async () => {
  const client = server.client();
  const runs = new Map<string, Job<any>[]>();
  const all = signal();
  const outcomes: Record<string, (nth: number) => unknown> = {
    done: () => "a value that is no outcome",
    skip: () => skip("paid"),
    dead: () => dead("no such order"),
    snooze: (nth) => nth === 1 && snooze("200ms"),
    until: (nth) => nth === 1 && snooze(new Date(Date.now() + 200)),
    again: (nth) => nth === 1 && again({ step: 2 }, 100),
    thrown: () => Promise.reject(skip("thrown")),
    wrong: (nth) => nth === 1 && snooze("soon"),
    impossible: (nth) => nth === 1 && again(1n),
  };
  const expected = Object.values(outcomes).length + 5;
  let total = 0;
  const worker = server.worker().handle("ENDS", (job: Job<string>) => {
    const nth = (runs.get(job.key!)?.length ?? 0) + 1;
    runs.set(job.key!, [...(runs.get(job.key!) ?? []), job]);
    if (++total === expected) all.resolve();
    return outcomes[job.key!]!(nth);
  });
  await during(worker, async () => {
    const jobs = Object.keys(outcomes).map((key) => ({ key, payload: key }));
    await client.scheduleMany("ENDS", jobs);
    await all.promise;
  });
  const attempts = (key: string) => runs.get(key)!.map((job) => job.attempt);
  const end = async (key: string) => {
    const { ended, dead } = await client.get("ENDS", { key });
    return ended ? [ended.ending, ended.reason] : ["dead", dead!.message];
  };
  assert.deepEqual(await end("done"), ["done", null]);
  assert.deepEqual(await end("skip"), ["skipped", "paid"]);
  assert.deepEqual(await end("thrown"), ["skipped", "thrown"]);
  assert.deepEqual(await end("dead"), ["dead", "no such order"]);
  assert.deepEqual(attempts("snooze"), [1, 1], "no attempt is used");
  assert.deepEqual(attempts("until"), [1, 1], "no attempt is used");
  assert.deepEqual(attempts("again"), [1, 1], "attempts start again");
  assert.deepEqual(
    runs.get("again")!.map((job) => job.payload),
    ["again", { step: 2 }],
  );
  assert.deepEqual(attempts("wrong"), [1, 2], "a refused outcome is a failed attempt");
  assert.deepEqual(attempts("impossible"), [1, 2]);
});

test("each of the results that share a request has its own answer", async () => {
  const [gate, retried] = [signal(), signal()];
  let waiting = 0;
  const worker = server.worker().handle("TOGETHER", async (job) => {
    if (job.attempt === 2) return retried.resolve();
    if (++waiting === 4) gate.resolve();
    await gate.promise;
    return job.payload === 3 ? snooze("soon") : undefined;
  });
  await during(worker, async () => {
    const jobs = [0, 1, 2, 3].map((payload) => ({ payload }));
    await server.client().scheduleMany("TOGETHER", jobs);
    await retried.promise;
  });
});

test("results that come during a request share the next one", async (context) => {
  const [sent, all] = [signal(), signal()];
  const sizes: number[] = [];
  const { fetch } = globalThis;
  context.mock.method(globalThis, "fetch", async (url: string, call: RequestInit) => {
    if (url.endsWith("/v1/leases:settle")) {
      sizes.push(JSON.parse(String(call.body)).results.length);
      sent.resolve();
      await all.promise;
    }
    return fetch(url, call);
  });
  let ended = 0;
  const worker = server.worker({ concurrency: 20 }).handle("SHARED", async (job) => {
    if (job.payload !== 0) await sent.promise;
    if (++ended === 20) all.resolve();
  });
  const jobs = Array.from({ length: 20 }, (_, payload) => ({ payload }));
  const scheduled = await server.client().scheduleMany("SHARED", jobs);
  await during(worker, () => all.promise);
  const ends = scheduled.map(({ id }) => server.client().get("SHARED", id));
  assert.ok((await Promise.all(ends)).every((job) => job.ended?.ending === "done"));
  assert.equal(sizes[0], 1);
  assert.ok(sizes.length <= 3, `${sizes}`);
});

test("a result of a wrong form, or a large one, does not harm the others", async () => {
  const client = server.client();
  const all = signal();
  let waiting = 0;
  const worker = server.worker().handle("WRONG", async (job: Job<number>) => {
    if (++waiting === 4) all.resolve();
    await all.promise;
    if (job.payload === 0) return skip(42 as any);
    return job.payload === 1 ? again("x".repeat(3_000_000)) : snooze("1h");
  });
  const jobs = [0, 1, 2, 3].map((payload) => ({ payload, maxAttempts: 1 }));
  const scheduled = await client.scheduleMany("WRONG", jobs);
  await during(worker, () => all.promise);
  const ends = await Promise.all(scheduled.map(({ id }) => client.get("WRONG", id)));
  assert.deepEqual(
    ends.map((job) => job.state),
    ["dead", "dead", "scheduled", "scheduled"],
  );
  assert.match(ends[1]!.dead!.message, /above 2 MB/);
});

test("an error of the server for results that share a request does not harm them", async (context) => {
  const [gate, failed] = [signal(), signal()];
  const { fetch } = globalThis;
  context.mock.method(globalThis, "fetch", async (url: string, call: RequestInit) => {
    const isShared = url.endsWith(":settle") && JSON.parse(String(call.body)).results.length > 1;
    if (isShared) failed.resolve();
    return isShared ? new Response("broken", { status: 500 }) : fetch(url, call);
  });
  let waiting = 0;
  const worker = server.worker().handle("BROKEN", async () => {
    if (++waiting === 4) gate.resolve();
    await gate.promise;
  });
  const jobs = [0, 1, 2, 3].map((payload) => ({ payload }));
  const scheduled = await server.client().scheduleMany("BROKEN", jobs);
  await during(worker, () => failed.promise);
  const ends = scheduled.map(({ id }) => server.client().get("BROKEN", id));
  assert.ok((await Promise.all(ends)).every((job) => job.ended?.ending === "done"));
});

test("a throttled queue starts no other job", async () => {
  const client = server.client();
  const times: number[] = [];
  const second = signal();
  const worker = server.worker({ concurrency: 1 }).handle("SLOW_DOWN", () => {
    times.push(performance.now());
    if (times.length === 1) return throttle("400ms");
    second.resolve();
  });
  await during(worker, async () => {
    await client.schedule("SLOW_DOWN", 1);
    await client.schedule("SLOW_DOWN", 2);
    await second.promise;
  });
  assert.ok(times[1]! - times[0]! >= 390, `${times}`);
});

test("no more handlers run at once than the worker has slots", async () => {
  const client = server.client();
  const [full, gate, all] = [signal(), signal(), signal()];
  let running = 0;
  let most = 0;
  let ended = 0;
  const worker = server.worker({ concurrency: 3 }).handle("MANY", async () => {
    most = Math.max(most, ++running);
    if (running === 3) full.resolve();
    await gate.promise;
    running--;
    if (++ended === 20) all.resolve();
  });
  await during(worker, async () => {
    await client.scheduleMany(
      "MANY",
      Array.from({ length: 20 }, (_, payload) => ({ payload })),
    );
    await full.promise;
    gate.resolve();
    await all.promise;
  });
  assert.equal(most, 3);
});

test("heartbeats keep the lease of a long handler", async () => {
  const client = server.client();
  let deliveries = 0;
  const ended = signal();
  const worker = server.worker({ lease: 1_000 }).handle("LONG", async (job) => {
    deliveries++;
    // Two and a half leases.
    await new Promise((resolve) => setTimeout(resolve, 2_500));
    assert.ok(!job.signal.aborted);
    ended.resolve();
  });
  const { id } = await client.schedule("LONG", null);
  await during(worker, () => ended.promise);
  assert.equal((await client.get("LONG", id)).ended?.ending, "done");
  assert.equal(deliveries, 1);
});

test("a lost lease cancels the handler, and its outcome does not count", async () => {
  const client = server.client();
  const [started, cancelled, second] = [signal<Job>(), signal<Error>(), signal<Job>()];
  const warnings: string[] = [];
  const worker = server.worker({ lease: 1_000, warn: (text) => warnings.push(text) });
  worker.handle("LOST", async (job) => {
    if (job.deliveries > 1) return second.resolve(job);
    started.resolve(job);
    // The event loop is blocked for longer than the lease: no heartbeat.
    const until = performance.now() + 1_500;
    while (performance.now() < until);
    await once(job.signal, "abort");
    cancelled.resolve(job.signal.reason);
  });
  await during(worker, async () => {
    await client.schedule("LOST", null);
    const first = await started.promise;
    assert.match((await cancelled.promise).message, /lost lease: expired/);
    const again = await second.promise;
    assert.ok(BigInt(again.token) > BigInt(first.token));
  });
  assert.match(warnings.join("\n"), /has lost its lease: expired/);
});

test("a job whose claim was answered too late does not start", async () => {
  const client = server.client();
  const [held, taken, lost] = [signal(), signal(), signal<string>()];
  // A proxy that holds the claim's answer, as a suspended process would.
  const proxy = createServer((from) => {
    const to = connect(server.port, "127.0.0.1");
    for (const socket of [from, to]) socket.on("error", () => {});
    from.pipe(to);
    to.on("data", async (data) => {
      if (data.includes('"LATE"')) {
        held.resolve();
        await taken.promise;
      }
      from.write(data);
    });
    from.on("close", () => to.destroy());
  }).listen(0, "127.0.0.1");
  await once(proxy, "listening");
  const url = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
  const late = server.worker({ url, lease: 1_000, warn: lost.resolve });
  late.handle("LATE", () => assert.fail("it runs elsewhere"));
  const other = server.worker().handle("LATE", async () => {
    taken.resolve();
    assert.match(await lost.promise, /has lost its lease: expired/);
  });
  const { id } = await client.schedule("LATE", null);
  await during(late, async () => {
    await held.promise;
    await during(other, async () => void (await lost.promise));
  });
  assert.equal((await client.get("LATE", id)).ended?.ending, "done");
  proxy.close();
});

test("nothing is lost when dq serve is killed", async () => {
  const crash = await Server.start();
  const client = crash.client();
  const total = 60;
  const ran = new Set<string>();
  const [some, all] = [signal(), signal()];
  const worker = crash.worker({ concurrency: 5, lease: 3_000 }).handle("CRASH", async (job) => {
    ran.add(job.id);
    if (ran.size === 20) some.resolve();
    if (ran.size === total) all.resolve();
  });
  const options = Array.from({ length: total - 20 }, (_, payload) => ({ payload }));
  const late = Array.from({ length: 20 }, (_, payload) => ({ payload }));
  const scheduled = await client.scheduleMany("CRASH", options);
  await during(worker, async () => {
    await some.promise;
    await crash.kill();
    // Scheduled while there is no server: each call is repeated until there is one.
    const calls = client.scheduleMany("CRASH", late);
    await crash.restart();
    scheduled.push(...(await calls));
    await all.promise;
  });
  assert.deepEqual([...ran].sort(), scheduled.map((job) => job.id).sort());
  const ends = await Promise.all(scheduled.map(({ id }) => client.get("CRASH", id)));
  assert.deepEqual(new Set(ends.map((job) => job.ended?.ending)), new Set(["done"]));
  await crash.remove();
});

test("SIGTERM lets handlers end, and hands back the ones that do not", async () => {
  const script = `
    import { Worker } from "dq-jobs";
    const worker = new Worker({ grace: 500, name: "node-7f3" });
    worker.handle("DRAIN", async (job) => {
      console.log("started", job.payload);
      if (job.payload === "ends") {
        process.once("SIGTERM", () => setImmediate(() => console.log("stopping")));
        await new Promise((resolve) => process.once("SIGTERM", () => setTimeout(resolve, 100)));
      } else if (job.payload === "listens") {
        await new Promise((_, reject) => job.signal.addEventListener("abort", () => reject(job.signal.reason)));
      } else await new Promise(() => {});
    });
    await worker.run();
    console.log("drained");
    process.exit();`;
  const env = { ...process.env, DQ_API: server.url, DQ_TOKEN: OPERATOR };
  const options = { env, stdio: ["ignore", "pipe", "inherit"] as ["ignore", "pipe", "inherit"] };
  const child = spawn(process.execPath, ["--input-type=module", "-e", script], options);
  const client = server.client();
  const payloads = ["ends", "listens", "hangs"];
  const started = Promise.all(payloads.map((payload) => lineOf(child, `started ${payload}`)));
  const jobs = payloads.map((payload) => ({ key: payload, payload }));
  await client.scheduleMany("DRAIN", jobs);
  await started;
  assert.match((await client.get("DRAIN", { key: "hangs" })).worker!, /^node-7f3@/);
  const drained = lineOf(child, "drained");
  const stopping = lineOf(child, "stopping");
  let output = "";
  child.stdout.on("data", (data) => (output += data));
  child.kill("SIGTERM");
  await stopping;
  await client.schedule("DRAIN", "too late", { key: "late" });
  await drained;
  assert.doesNotMatch(output, /started/);
  await once(child, "exit");
  const get = (key: string) => client.get("DRAIN", { key });
  assert.equal((await get("ends")).ended?.ending, "done");
  for (const key of ["listens", "hangs", "late"]) {
    const { state, attempts } = await get(key);
    assert.deepEqual([key, state, attempts], [key, "ready", 0]);
  }
});

test("a worker with a wrong token, and without its queue, ends with the reason", async () => {
  const worker = (token: string) => server.worker({ token }).handle("OTHER", () => {});
  await assert.rejects(worker("wrong").run(), { kind: "unauthenticated" });
  await assert.rejects(worker(MAILER).run(), { kind: "forbidden", message: /OTHER/ });
  assert.throws(() => new Worker({ url: "no address" }), TypeError);
});

test("a worker uses the second address while the first is refused", async () => {
  const ran = signal<Job>();
  const url = [`http://127.0.0.1:${await freePort()}`, server.url];
  await during(server.worker({ url }).handle("SECOND", ran.resolve), async () => {
    await server.client().schedule("SECOND", null);
    await ran.promise;
  });
});
