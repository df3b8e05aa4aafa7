import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { type ConnectionOptions, DqError, Http, describe } from "./http.ts";
import { Outcome, fail } from "./outcomes.ts";

export interface WorkerOptions extends ConnectionOptions {
  /** How many handlers run at once, up to 1,000; default 10. */
  concurrency?: number;
  /** After how many milliseconds without a sign of life a job runs elsewhere; default 30,000. */
  lease?: number;
  /** For how many milliseconds handlers may run on at a shutdown; default 25,000. */
  grace?: number;
  name?: string;
  warn?: (message: string) => void;
}

export interface Job<Payload = unknown> {
  queue: string;
  id: string;
  key?: string;
  payload: Payload;
  payload_base64?: string;
  headers: Record<string, string>;
  due: string;
  attempt: number;
  maxAttempts: number;
  deliveries: number;
  step: number;
  /** A number that grows with each delivery: let your database refuse smaller ones. */
  token: string;
  /** Aborted when the lease is lost, and when a shutdown's grace is over. */
  signal: AbortSignal;
}

/** `expires` is by this process's clock, counted from the request. */
type Run = { job: Job<any> & { lease: string }; controller: AbortController; expires: number } & {
  settling?: boolean;
};

/** Claims due jobs, and runs their handlers. */
export class Worker {
  readonly #http: Http;
  readonly #options;
  readonly #handlers = new Map<string, (job: Job<any>) => unknown>();
  readonly #leased = new Set<Run>();
  /** With the handlers that have lost their lease: they use a slot until they end. */
  readonly #working = new Set<Promise<void>>();
  readonly #results: object[] = [];
  #answers: Promise<any[] | void> = Promise.resolve([]);
  #wake = () => {};

  constructor(options: WorkerOptions = {}) {
    const { concurrency = 10, lease = 30_000, grace = 25_000 } = options;
    const { name = `${hostname()}-${process.pid}`, warn = console.warn } = options;
    this.#options = { concurrency, lease, grace, name, warn };
    this.#http = new Http(options, (error) => warn(`dq: ${error.message}; trying again`));
  }

  /** Sets the queue's handler. An error that it throws is a failed attempt. */
  handle<Payload>(queue: string, handler: (job: Job<Payload>) => unknown): this {
    this.#handlers.set(queue, handler);
    return this;
  }

  /** Works until the signal, by default SIGTERM or Ctrl-C, and then until the handlers end. */
  async run(signal = shutdownSignal()): Promise<void> {
    const renewal = setInterval(() => this.#renew([...this.#leased]), this.#options.lease / 3);
    signal.addEventListener("abort", () => this.#wake(), { once: true });
    try {
      while (!signal.aborted) await this.#claim(signal);
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      const ended = Promise.all(this.#working);
      await Promise.race([ended, sleep(this.#options.grace, undefined, { ref: false })]);
      for (const { controller } of this.#leased) controller.abort(new Error("the worker stops"));
      await Promise.race([ended, sleep(1_000, undefined, { ref: false })]);
      await Promise.all([...this.#leased].map((run) => this.#settle(run, new Outcome("released"))));
      clearInterval(renewal);
    }
  }

  async #claim(signal: AbortSignal): Promise<void> {
    const { concurrency, lease, name: worker } = this.#options;
    const max = concurrency - this.#working.size;
    if (max <= 0) return new Promise((resolve) => (this.#wake = resolve));
    const queues = Object.fromEntries([...this.#handlers.keys()].map((queue) => [queue, max]));
    const body = { queues, max, wait: "20s", lease: `${lease}ms`, worker };
    const asked = performance.now();
    const call = { body, signal, timeout: 30_000, retryFor: Infinity };
    const claimed = await this.#http.send("POST", "/v1/claims", call);
    const runs: Run[] = (claimed?.jobs ?? []).map((job: any) => {
      const controller = new AbortController();
      Object.assign(job, { maxAttempts: job.max_attempts, signal: controller.signal });
      return { job, expires: asked + lease, controller };
    });
    for (const run of runs) this.#leased.add(run);
    // If this process was suspended meanwhile, the jobs may run elsewhere.
    if (performance.now() - asked > lease / 2) await this.#renew(runs);
    for (const run of runs.filter((run) => this.#leased.has(run))) {
      const work = this.#work(run);
      this.#working.add(work);
      void work.then(() => this.#working.delete(work) && this.#wake());
    }
  }

  async #work(run: Run): Promise<void> {
    try {
      const value = await this.#handlers.get(run.job.queue)!(run.job);
      await this.#settle(run, value instanceof Outcome ? value : new Outcome("done"));
    } catch (error) {
      const failed = run.job.signal.aborted ? new Outcome("released") : fail(error);
      await this.#settle(run, error instanceof Outcome ? error : failed);
    }
  }

  async #settle(run: Run, outcome: Outcome): Promise<void> {
    if (run.settling || !this.#leased.has(run)) return;
    run.settling = true; // Its lease is renewed until then: other results may be sent before.
    try {
      const { why, error } = await this.#report(run, outcome);
      if (why ?? error) throw new DqError(why ? "lost" : "invalid input", why ?? error.detail);
    } catch (error: any) {
      this.#options.warn(`dq: job ${run.job.id} is not ${outcome.message}: ${describe(error)}`);
      run.settling = error.kind !== "invalid input" || outcome.message === "failed";
      await this.#settle(run, fail(error)); // For example, the delay is wrong.
    }
    this.#leased.delete(run);
  }

  /** Sends a result. Small ones that come during a request share the next one. */
  async #report(run: Run, outcome: Outcome): Promise<any> {
    const result = { lease: run.job.lease, outcome: outcome.message, ...outcome.fields };
    const size = Buffer.byteLength(JSON.stringify(result));
    if (size > 2_000_000) throw new DqError("invalid input", `${size} bytes are too large`);
    const send = async (results: object[]) => {
      const call = { body: { results }, retryFor: run.expires - performance.now() };
      return (await this.#http.send("POST", "/v1/leases:settle", call)).results;
    };
    if (size < 1_000) {
      const index = this.#results.push(result) - 1;
      const share = () => send(this.#results.splice(0));
      if (index === 0) this.#answers = this.#answers.then(share, share);
      const answers = await this.#answers.catch(() => {}); // Another one has a wrong form.
      if (answers) return answers[index];
    }
    return (await send([result]))[0];
  }

  async #renew(runs: Run[]): Promise<void> {
    if (runs.length === 0) return;
    const { lease, warn } = this.#options;
    const sent = performance.now();
    const body = { leases: runs.map((run) => run.job.lease) };
    const call = { body, timeout: lease / 6, retryFor: lease / 6 };
    try {
      const answer = await this.#http.send("POST", "/v1/leases:renew", call);
      for (const [i, run] of runs.entries()) {
        const { result, why, error } = answer.leases[i];
        if (result === "renewed") run.expires = sent + lease;
        else this.#lose(run, why ?? error.detail);
      }
    } catch (error) {
      warn(`dq: leases were not renewed: ${describe(error)}`);
    }
    for (const run of runs) if (run.expires < performance.now()) this.#lose(run, "expired");
  }

  #lose(run: Run, why: string): void {
    if (run.settling || !this.#leased.delete(run)) return;
    this.#options.warn(`dq: job ${run.job.id} has lost its lease: ${why}`);
    run.controller.abort(new Error(`lost lease: ${why}`));
  }
}

/** Aborts at SIGTERM and Ctrl-C. The second one ends the process at once. */
export function shutdownSignal(): AbortSignal {
  const controller = new AbortController();
  for (const name of ["SIGTERM", "SIGINT"]) process.once(name, () => controller.abort());
  return controller.signal;
}
