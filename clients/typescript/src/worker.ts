import { Buffer } from "node:buffer";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { type ConnectionOptions, DqError, Http, describe } from "./http.ts";
import { type Duration, Outcome, due, fail } from "./outcomes.ts";

export interface WorkerOptions extends ConnectionOptions {
  /** How many handlers run at once, from 1 to 1,000; 10 by default. */
  concurrency?: number;
  /** How long a job stays with this worker if it hangs; by default, the queue's setting. */
  lease?: Duration;
  /** For how many milliseconds handlers may run on at a shutdown; 25,000 by default. */
  grace?: number;
  /** For operators; by default, host name and process id. */
  name?: string;
  log?: Pick<Console, "warn" | "error">;
}

/** A job that this worker runs. */
export interface Job<Payload = unknown> {
  queue: string;
  id: string;
  key?: string;
  /** A `Uint8Array`, unless it is JSON. */
  payload: Payload;
  contentType: string;
  headers: Record<string, string>;
  due: string;
  /** From 1; equal to `maxAttempts` in the last attempt. */
  attempt: number;
  maxAttempts: number;
  deliveries: number;
  step: number;
  /** A decimal number, larger in each delivery. Let your database refuse smaller ones. */
  token: string;
  /** Aborted when the lease is lost, and when a shutdown's grace is over. Stop then. */
  signal: AbortSignal;
}

export type Handler<Payload> = (job: Job<Payload>) => unknown;

interface Run {
  job: Job<any>;
  lease: string;
  /** The lease's length in milliseconds. */
  length: number;
  /** By this process's clock, counted from before the request: the lease is not shorter. */
  expires: number;
  renewAt: number;
  controller: AbortController;
  state: "running" | "lost" | "settling";
}

/** Claims due jobs, and runs their handlers. */
export class Worker {
  readonly #http: Http;
  readonly #options;
  readonly #handlers = new Map<string, { handler: Handler<any>; concurrency: number }>();
  readonly #runs = new Set<Run>();
  #results: { run: Run; result: Record<string, unknown>; size: number }[] = [];
  #isSettling = false;
  #isStopping = false;
  #renewal?: NodeJS.Timeout;
  #wake = () => {};

  constructor(options: WorkerOptions = {}) {
    const { concurrency = 10, grace = 25_000, name = `${hostname()}-${process.pid}` } = options;
    const { log = console, lease } = options;
    if (!(concurrency >= 1 && concurrency <= 1_000))
      throw new RangeError(`concurrency is ${concurrency}, not from 1 to 1,000`);
    const onRetry = options.onRetry ?? ((error) => log.warn(`dq: ${error.message}; trying again`));
    this.#options = { concurrency, grace, name, lease: due(lease), log };
    this.#http = new Http({ ...options, onRetry });
  }

  /** Sets a queue's handler. An error that it throws is a failed attempt. */
  handle<Payload>(
    queue: string,
    handler: Handler<Payload>,
    options: { concurrency?: number } = {},
  ) {
    if (this.#handlers.has(queue)) throw new Error(`queue ${queue} has a handler already`);
    this.#handlers.set(queue, { handler, concurrency: options.concurrency ?? Infinity });
    return this;
  }

  /** Works until the signal, by default SIGTERM or Ctrl-C; returns after the handlers' end. */
  async run(signal: AbortSignal = shutdownSignal()): Promise<void> {
    const wake = () => this.#wake();
    signal.addEventListener("abort", wake);
    try {
      while (!signal.aborted) await this.#claim(signal);
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      signal.removeEventListener("abort", wake);
      await this.#drain();
    }
  }

  async #claim(signal: AbortSignal): Promise<void> {
    const max = this.#options.concurrency - this.#runs.size;
    const queues: Record<string, number> = {};
    for (const [queue, { concurrency }] of this.#handlers) {
      const running = [...this.#runs].filter((run) => run.job.queue === queue).length;
      const free = Math.min(concurrency - running, max);
      if (free > 0) queues[queue] = free;
    }
    if (Object.keys(queues).length === 0) return this.#changed();
    const { lease, name: worker } = this.#options;
    const body = { queues, max, wait: "20s", lease, worker };
    const asked = performance.now();
    // While the request is repeated, `asked` is too early, which is safe.
    const claimed = await this.#http.send("POST", "/v1/claims", {
      body,
      signal,
      timeout: 30_000,
      retryFor: Infinity,
    });
    if (claimed) await this.#start(claimed.jobs, claimed.now, asked);
  }

  async #start(jobs: any[], now: string, asked: number): Promise<void> {
    const answered = performance.now();
    const runs = jobs.map(({ lease, leaseEnds, payloadBase64, ...job }): Run => {
      const length = Date.parse(leaseEnds) - Date.parse(now);
      const controller = new AbortController();
      if (payloadBase64 !== undefined) job.payload = Buffer.from(payloadBase64, "base64");
      job.signal = controller.signal;
      const [expires, renewAt] = [asked + length, answered + length / 3];
      return { job, lease, length, expires, renewAt, controller, state: "running" };
    });
    for (const run of runs) this.#runs.add(run);
    // This process may have been suspended: are the jobs still its own?
    const old = runs.filter((run) => answered - asked > run.length / 2);
    if (old.length > 0) await this.#renew(old);
    for (const run of runs) void this.#work(run);
    this.#renewLater();
  }
}
