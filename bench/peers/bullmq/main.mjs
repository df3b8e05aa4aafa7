// Stores and runs jobs with BullMQ; see ../README.md for the arguments and the output.
import { Queue, Worker } from 'bullmq';

const CONCURRENCY = 16;
const BULK = 1000;

const [command, address, ...numbers] = process.argv.slice(2);
const [host, port] = address.split(':');
const connection = { host, port: Number(port), maxRetriesPerRequest: null };

function job(id, first, rate) {
  const due = first > 0 ? first + (rate > 0 ? Math.floor((id * 1000) / rate) : 0) : 0;
  const now = Date.now();
  const opts = { removeOnComplete: true, attempts: 25 };
  if (due > 0) opts.delay = Math.max(due - now, 0);
  return { name: 'job', data: { id, due: due > 0 ? due : now }, opts };
}

async function store(count, how, first, rate) {
  const queue = new Queue('jobs', { connection });
  await queue.waitUntilReady();
  const started = process.hrtime.bigint();
  if (how === 'bulk') {
    for (let id = 0; id < count; id += BULK) {
      const length = Math.min(BULK, count - id);
      await queue.addBulk(Array.from({ length }, (_, n) => job(id + n, first, rate)));
    }
  } else {
    for (let id = 0; id < count; id += 1) {
      const { name, data, opts } = job(id, first, rate);
      await queue.add(name, data, opts);
    }
  }
  console.log(Number(process.hrtime.bigint() - started) / 1e9);
  await queue.close();
}

function work(sleep) {
  const run = async ({ data }) => {
    const started = Math.round((performance.timeOrigin + performance.now()) * 1000);
    if (sleep > 0) await new Promise((done) => setTimeout(done, sleep));
    process.stdout.write(`${data.id} ${data.due} ${started}\n`);
  };
  new Worker('jobs', run, { connection, concurrency: CONCURRENCY });
}

async function limit(maxRunning, perSecond) {
  const queue = new Queue('jobs', { connection });
  if (maxRunning > 0) await queue.setGlobalConcurrency(maxRunning);
  if (perSecond > 0) await queue.setGlobalRateLimit(perSecond, 1000);
  await queue.close();
}

if (command === 'limit') {
  await limit(...numbers.map(Number));
} else if (command === 'store') {
  await store(Number(numbers[0]), numbers[1], Number(numbers[2]), Number(numbers[3]));
} else {
  work(Number(numbers[0]));
}
