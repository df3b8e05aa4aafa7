// As worker.py.
import { appendFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Worker, again } from "dq-jobs";

const [url, token, file, lease, count, concurrency] = process.argv.slice(2);
const note = (event, job) =>
  appendFileSync(file, `${event} ${job.id} ${job.token} ${Date.now()}\n`);

async function handle(job) {
  const { work, plan } = job.payload;
  note("start", job);
  await sleep(work, undefined, { signal: job.signal });
  if (plan === "fail" && job.attempt === 1) throw new Error("as planned");
  note("end", job);
  if (plan === "again") return again({ work, plan: "done" });
}

process.stdin.on("end", () => process.exit(1)).resume();
const options = { url, token, lease: Number(lease), concurrency: Number(concurrency) };
const workers = Array.from({ length: Number(count) }, () => new Worker(options));
await Promise.all(workers.map((worker) => worker.handle("A", handle).handle("B", handle).run()));
