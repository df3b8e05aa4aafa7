// Runs jobs with our client for TypeScript; see ../README.md for the arguments and the output.

import { Worker } from 'dq-jobs';

const [, url, millis] = process.argv.slice(2);
const worker = new Worker({ url, concurrency: 16 });
worker.handle('JOBS', async ({ payload }) => {
  const started = Math.round((performance.timeOrigin + performance.now()) * 1000);
  if (millis > 0) await new Promise((done) => setTimeout(done, millis));
  process.stdout.write(`${payload.id} ${payload.due} ${started}\n`);
});
await worker.run();
