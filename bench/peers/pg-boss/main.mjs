// Stores and runs jobs with pg-boss; see ../README.md for the arguments and the output.
import { PgBoss } from 'pg-boss';

const CONCURRENCY = 16;
const BULK = 1000;
const QUEUE = 'jobs';

const [command, connectionString, ...numbers] = process.argv.slice(2);
const boss = new PgBoss({ connectionString });
await boss.start();
await boss.createQueue(QUEUE);

function job(id, first, rate) {
  if (first === 0) return { data: { id, due: Date.now() } };
  const due = first + (rate > 0 ? Math.floor((id * 1000) / rate) : 0);
  return { data: { id, due }, startAfter: new Date(due) };
}

async function store(count, how, first, rate) {
  const started = process.hrtime.bigint();
  if (how === 'bulk') {
    for (let id = 0; id < count; id += BULK) {
      const length = Math.min(BULK, count - id);
      await boss.insert(QUEUE, Array.from({ length }, (_, n) => job(id + n, first, rate)));
    }
  } else {
    for (let id = 0; id < count; id += 1) {
      const { data, ...options } = job(id, first, rate);
      await boss.send(QUEUE, data, options);
    }
  }
  console.log(Number(process.hrtime.bigint() - started) / 1e9);
  await boss.stop();
}

async function run({ data }, sleep) {
  const started = Math.round((performance.timeOrigin + performance.now()) * 1000);
  if (sleep > 0) await new Promise((done) => setTimeout(done, sleep));
  process.stdout.write(`${data.id} ${data.due} ${started}\n`);
}

if (command === 'store') {
  await store(Number(numbers[0]), numbers[1], Number(numbers[2]), Number(numbers[3]));
} else {
  const sleep = Number(numbers[0]);
  // A worker takes a batch and runs its jobs at once. It looks for jobs at the shortest interval that
  // it allows, by default 2 s, and without a pause while batches are full.
  const options = { batchSize: CONCURRENCY, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true };
  await boss.work(QUEUE, options, (jobs) => Promise.all(jobs.map((job) => run(job, sleep))).then(() => {}));
}
