import assert from "node:assert/strict";
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Webhook } from "standardwebhooks";
import { OPERATOR, Server, lineOf, signal } from "./support.js";

const root = fileURLToPath(new URL("../..", import.meta.url));
const readme = readFileSync(join(root, "README.md"), "utf8");
const consumer = mkdtempSync(join(tmpdir(), "dq-jobs-consumer-"));
const bin = (name: string) => join(root, "node_modules/.bin", name);

before(() => {
  // The package as others get it: packed, and installed elsewhere.
  const pack = ["pack", "--ignore-scripts", "--silent", "--pack-destination", consumer];
  const file = execFileSync("npm", pack, { cwd: root, encoding: "utf8" }).trim();
  writeFileSync(join(consumer, "package.json"), `{"type": "module"}`);
  execFileSync("npm", ["install", "--silent", "--offline", "--no-audit", join(consumer, file)], {
    cwd: consumer,
  });
});
after(() => rmSync(consumer, { recursive: true }));

/** Runs README's quick start, and returns the process after the job has fired. */
async function quickStart(program: string, args: string[]): Promise<void> {
  const server = await Server.start();
  const script = /```js\n([\s\S]*?)```/.exec(readme)![1]!;
  writeFileSync(join(consumer, "quickstart.mjs"), script);
  const env = { ...process.env, DQ_API: server.url, DQ_TOKEN: OPERATOR };
  const options = {
    cwd: consumer,
    env,
    stdio: ["ignore", "pipe", "inherit"] as ["ignore", "pipe", "inherit"],
  };
  const child: ChildProcess = spawn(program, [...args, "quickstart.mjs"], options);
  await lineOf(child, "Hello, Ann");
  child.kill("SIGTERM");
  const [code] = await once(child, "exit");
  assert.equal(code, 0, "SIGTERM stops the worker");
  await server.remove();
}

test("the quick start fires under Node.js", () => quickStart(process.execPath, []));
test("the quick start fires under Bun", () => quickStart(bin("bun"), []));
test("the quick start fires under Deno", () => quickStart(bin("deno"), ["run", "-A"]));

/** Cancels at a server that cuts the connection, and then at its port, which refuses. */
const cancels = `
  import { createServer } from "node:net";
  import { Client } from "dq-jobs";
  const cutting = createServer((socket) => socket.once("data", () => socket.destroy()));
  await new Promise((resolve) => cutting.listen(0, "127.0.0.1", resolve));
  const dq = new Client({ url: "http://127.0.0.1:" + cutting.address().port });
  const kind = () => dq.cancel("Q", "x", { retryFor: 0 }).catch((error) => error.kind);
  const cut = await kind();
  await new Promise((resolve) => cutting.close(resolve));
  console.log(cut + ", " + (await kind()));`;

test("only a refused connection is known to have done nothing", () => {
  writeFileSync(join(consumer, "cancels.mjs"), cancels);
  for (const [program, ...args] of [[process.execPath], [bin("bun")], [bin("deno"), "run", "-A"]]) {
    const options = { cwd: consumer, encoding: "utf8" } as const;
    const kinds = execFileSync(program!, [...args, "cancels.mjs"], options);
    assert.equal(kinds, "outcome unknown, unavailable\n", program);
  }
});

test("the types suit a strict consumer without @types/node", () => {
  writeFileSync(
    join(consumer, "consumer.ts"),
    `import { Client, DqError, type Job, Worker, again, snooze } from "dq-jobs";
    const dq = new Client({ url: ["http://a", "http://b"], token: "t" });
    await dq.schedule("Q", { order: 1 }, { delay: 900_000, onConflict: "replace", signal: AbortSignal.timeout(5) });
    // @ts-expect-error: a delay or a time, not both
    await dq.schedule("Q", 1, { delay: "1h", at: new Date() });
    // @ts-expect-error: no such policy
    await dq.schedule("Q", 1, { onConflict: "drop" });
    const { state, last_error } = await dq.get("Q", { key: "k" });
    const text: string | undefined = (await dq.where("Q", "id")).now?.reason;
    const handler = (job: Job<{ order: number }>) => job.payload.order > 1 ? snooze("1h") : again({}, new Date());
    const done: Promise<void> = new Worker({ concurrency: 5 }).handle("Q", handler).run();
    console.log(state, last_error, text, done, new DqError("k", "m").remedy);`,
  );
  const common = [
    "--noEmit",
    "--strict",
    "--target",
    "es2022",
    "--lib",
    "es2022,dom",
    "--types",
    "",
  ];
  for (const module of [
    ["nodenext", "nodenext"],
    ["esnext", "bundler"],
  ])
    execFileSync(
      bin("tsc"),
      [...common, "--module", module[0]!, "--moduleResolution", module[1]!, "consumer.ts"],
      {
        cwd: consumer,
        stdio: "inherit",
      },
    );
});

test("standardwebhooks verifies a webhook of dq serve", async () => {
  const secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
  const verified = signal<unknown>();
  const receiver = createServer(async (request, response) => {
    const body = (await request.toArray()).join("");
    verified.resolve(new Webhook(secret).verify(body, request.headers as Record<string, string>));
    response.end();
  }).listen(0, "127.0.0.1");
  await once(receiver, "listening");
  const { port } = receiver.address() as AddressInfo;
  const server = await Server.start(`
    [queues.BILLING.forward]
    type = "http"
    url = "http://127.0.0.1:${port}/due"
    allow = ["127.0.0.1"]
    secrets = ["${secret}"]`);
  await server.client().schedule("BILLING", { order: 17 });
  assert.deepEqual(await verified.promise, { order: 17 });
  await server.remove();
  receiver.close();
});
