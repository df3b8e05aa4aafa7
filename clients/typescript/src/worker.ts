import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, type ConnectionOptions } from "./client.ts";
import { Outcome, describe, fail } from "./outcomes.ts";

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

type Leased = Job<any> & { lease: string };
/** `expires` is by this process's clock, counted from the request; 0 if the lease is lost. */
type Run = { job: Leased; controller: AbortController; expires: number; outcome?: Outcome };

/** Claims due jobs, and runs their handlers. */
export class Worker {
  readonly #client: Client;
  readonly #options;
  readonly #handlers = new Map<string, (job: Job<any>) => unknown>();
  /** Each uses a slot until its handler has ended and its outcome is settled. */
  readonly #runs = new Map<Run, Promise<void>>();
  readonly #ended: Run[] = [];
  #settled: Promise<unknown> = Promise.resolve();
  #wake = () => {};

  constructor(options: WorkerOptions = {}) {
    const { concurrency = 10, lease = 30_000, grace = 25_000 } = options;
    const { name = `${hostname()}-${process.pid}`, warn = console.warn } = options;
    this.#options = { concurrency, lease, grace, name, warn };
    this.#client = new Client(options, (error) => warn(`dq: ${error.message}; trying again`));
  }

  /** Sets the queue's handler. An error that it throws is a failed attempt. */
  handle<Payload>(queue: string, handler: (job: Job<Payload>) => unknown): this {
    this.#handlers.set(queue, handler);
    return this;
  }

  /** Works until the signal, by default SIGTERM or Ctrl-C, and then until the handlers end. */
  async run(signal = shutdownSignal()): Promise<void> {
    const renewal = setInterval(() => this.#renew([...this.#runs.keys()]), this.#options.lease / 3);
    signal.addEventListener("abort", () => this.#wake(), { once: true });
    try {
      while (!signal.aborted) await this.#claim(signal);
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      const ended = Promise.all(this.#runs.values());
      await Promise.race([ended, sleep(this.#options.grace, undefined, { ref: false })]);
      for (const { controller } of this.#runs.keys()) controller.abort(new Error("shutdown"));
      await Promise.race([ended, sleep(1_000, undefined, { ref: false })]);
      for (const run of this.#runs.keys()) void this.#end(run, new Outcome("released"));
      await this.#settled;
      clearInterval(renewal);
    }
  }

  async #claim(signal: AbortSignal): Promise<void> {
    const { concurrency, lease, name: worker } = this.#options;
    const max = concurrency - this.#runs.size;
    if (max <= 0) return new Promise((resolve) => (this.#wake = resolve));
    const queues = Object.fromEntries([...this.#handlers.keys()].map((queue) => [queue, max]));
    const body = { queues, max, wait: "20s", lease: `${lease}ms`, worker };
    const asked = performance.now();
    const call = { body, signal, timeout: 30_000, retryFor: Infinity, repeat: true };
    const claimed = await this.#client.request("POST", "/v1/claims", call);
    const runs: Run[] = (claimed?.jobs ?? []).map((job: any) => {
      const controller = new AbortController();
      Object.assign(job, { maxAttempts: job.max_attempts, signal: controller.signal });
      return { job, expires: asked + lease, controller };
    });
    // If this process was suspended meanwhile, the jobs may run elsewhere.
    if (performance.now() - asked > lease / 2) await this.#renew(runs);
    for (const run of runs) if (run.expires) this.#runs.set(run, this.#work(run));
  }

  async #work(run: Run): Promise<void> {
    try {
      const value = await this.#handlers.get(run.job.queue)!(run.job);
      await this.#end(run, value instanceof Outcome ? value : new Outcome("done"));
    } catch (error) {
      const failed = run.job.signal.aborted ? new Outcome("released") : fail(error);
      await this.#end(run, error instanceof Outcome ? error : failed);
    }
    this.#runs.delete(run);
    this.#wake();
  }

  /** Settles a run. Outcomes that come during a request share the next one. */
  async #end(run: Run, outcome: Outcome): Promise<void> {
    if (run.outcome || !run.expires) return;
    run.outcome = outcome;
    const settle = () => this.#settle(this.#ended.splice(0));
    if (this.#ended.push(run) === 1) this.#settled = this.#settled.then(settle, settle);
    await this.#settled;
  }

  async #settle(runs: Run[]): Promise<unknown> {
    const { warn } = this.#options;
    const results = runs.map(({ job, outcome }) => ({ lease: job.lease, ...outcome!.result }));
    const retryFor = Math.max(...runs.map((run) => run.expires)) - performance.now();
    const call = { body: { results }, retryFor, repeat: true };
    let answers;
    try {
      answers = (await this.#client.request("POST", "/v1/leases:settle", call)).results;
    } catch (error: any) {
      if (error.isTemporary) return warn(`dq: ${runs.length} jobs may run again: ${error.message}`);
      // One has a wrong form, or they are too large together.
      if (runs.length > 1) return Promise.all(runs.map((run) => this.#settle([run])));
      answers = [{ error: { detail: describe(error) } }];
    }
    for (const [i, run] of runs.entries()) {
      const { result, why, error } = answers[i];
      if (result === "settled") continue;
      warn(`dq: job ${run.job.id} is not ${run.outcome!.message}: ${why ?? error.detail}`);
      if (!error || run.outcome!.message === "failed") continue;
      run.outcome = fail(error.detail); // For example, the delay is wrong.
      await this.#settle([run]);
    }
  }

  async #renew(claimed: Run[]): Promise<void> {
    const runs = claimed.filter((run) => run.expires);
    if (runs.length === 0) return;
    const { lease, warn } = this.#options;
    const sent = performance.now();
    const body = { leases: runs.map((run) => run.job.lease) };
    const call = { body, timeout: lease / 6, retryFor: lease / 6, repeat: true };
    let answers: any[] = [];
    try {
      answers = (await this.#client.request("POST", "/v1/leases:renew", call)).leases;
    } catch (error) {
      warn(`dq: a renewal of leases has failed: ${describe(error)}`);
    }
    for (const [i, run] of runs.entries()) {
      const { result, why, error } = answers[i] ?? {};
      if (result === "renewed") run.expires &&= sent + lease;
      const lost = why ?? error?.detail ?? (run.expires < performance.now() && "expired");
      if (!lost || !run.expires || run.outcome) continue;
      run.expires = 0;
      warn(`dq: job ${run.job.id} has lost its lease: ${lost}`);
      run.controller.abort(new Error(`lost lease: ${lost}`));
    }
  }
}

/** Aborts at SIGTERM and Ctrl-C. The second one ends the process at once. */
export function shutdownSignal(): AbortSignal {
  const controller = new AbortController();
  for (const name of ["SIGTERM", "SIGINT"]) process.once(name, () => controller.abort());
  return controller.signal;
}
