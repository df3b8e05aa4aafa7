import { setTimeout as sleep } from "node:timers/promises";
import { type Duration, describe, due } from "./outcomes.ts";

export interface ConnectionOptions {
  /** The address, or several that serve one store; by default, `DQ_API` and `DQ_TOKEN` count. */
  url?: string | string[];
  token?: string;
}

/** While the server is away, a call is repeated for `retryFor` milliseconds, by default 10,000. */
export type CallOptions = { signal?: AbortSignal; retryFor?: number };
export type RequestOptions = CallOptions & { body?: unknown; timeout?: number; repeat?: boolean };
export type JobRef = string | { key: string };
export type When = { delay?: Duration; at?: never } | { delay?: never; at: Date | string };

export interface JobOptions {
  /** Your name for the job: at most one waiting or running job of the queue has it. */
  key?: string;
  /** If a waiting job has the key; `keep`, the default, does not store the new job. */
  onConflict?: "keep" | "replace" | "earliest" | "latest";
  onRunning?: "refuse" | "detach";
  group?: string;
  headers?: Record<string, string>;
  maxAttempts?: number;
  /** Calls with the same one store one job, until `remember` (a day) after the job's end. */
  idempotencyKey?: string;
  remember?: Duration;
}

export type NewJob = When & JobOptions & { payload: unknown };

export interface Scheduled {
  /** Only `created` and `replaced` mean that this job is stored. */
  result: "created" | "replaced" | "kept" | "already_running" | "ended";
  id: string;
  due: string;
}

export interface JobDetail {
  id: string;
  key: string | null;
  state: "scheduled" | "ready" | "running" | "dead" | "ended";
  due: string;
  attempts: number;
  last_error: string | null;
  worker: string | null;
  dead: { kind: string; message: string; at: string } | null;
  ended: { ending: string; reason: string | null; at: string } | null;
}

/** What has happened to a job, and why it does not run now: `null` if it has ended. */
export type Timeline = { events: { event: string }[]; now: { reason: string } | null };

/** Why a request failed. `kind` is such as `not found`, `conflict`, `forbidden`, `unavailable`. */
export class DqError extends Error {
  constructor(
    readonly kind: string,
    message: string,
    readonly remedy?: string,
  ) {
    super(message);
  }

  /** The server is away. After `outcome unknown`, it may have done what it was asked. */
  get isTemporary(): boolean {
    return ["unavailable", "closed", "outcome unknown"].includes(this.kind);
  }
}

export class Client {
  readonly #urls: string[];
  readonly #headers: Record<string, string>;
  readonly #onRetry?: (error: DqError) => void;

  constructor(options: ConnectionOptions = {}, onRetry?: (error: DqError) => void) {
    const { url = process.env.DQ_API, token = process.env.DQ_TOKEN } = options;
    const urls = [url ?? "http://127.0.0.1:7373"].flat();
    this.#urls = urls.map((url) => new URL(url).href.replace(/\/$/, ""));
    const authorization = token && { authorization: `Bearer ${token}` };
    this.#headers = { "content-type": "application/json", ...authorization };
    this.#onRetry = onRetry;
  }

  /** Schedules a job: exactly one, also if the connection breaks and the call is repeated. */
  async schedule(queue: string, payload: unknown, options: When & JobOptions & CallOptions = {}) {
    const { signal, retryFor, ...job } = options;
    const [scheduled] = await this.scheduleMany(queue, [{ ...job, payload }], { signal, retryFor });
    return scheduled!;
  }

  /** Schedules up to 1,000 jobs in one call; one that is invalid prevents all. */
  async scheduleMany(queue: string, jobs: NewJob[], options?: CallOptions): Promise<Scheduled[]> {
    const call = { ...options, body: { jobs: jobs.map(newJob) }, repeat: true };
    return (await this.request("POST", `${path(queue)}:schedule`, call)).results;
  }

  /** Cancels a waiting job. Rejects with `conflict` if it runs, `not found` if none waits. */
  async cancel(queue: string, job: JobRef, options?: CallOptions): Promise<void> {
    await this.request("DELETE", path(queue, job), options);
  }

  /** Moves a waiting job. Rejects as `cancel` does. */
  async reschedule(queue: string, job: JobRef, { at, delay, ...options }: When & CallOptions) {
    const body = { due: due(at ?? delay ?? "now") };
    await this.request("PATCH", path(queue, job), { ...options, body });
  }

  get(queue: string, job: JobRef, options?: CallOptions): Promise<JobDetail> {
    return this.request("GET", path(queue, job), options);
  }

  where(queue: string, job: JobRef, options?: CallOptions): Promise<Timeline> {
    return this.request("GET", `${path(queue, job)}/timeline`, options);
  }

  /** Sends any request. If the answer is lost, `repeat` counts: by default, only GET, HEAD, PUT and PATCH. */
  async request(method: string, path: string, options: RequestOptions = {}): Promise<any> {
    const { signal, timeout = 10_000, repeat = /^(GET|HEAD|PUT|PATCH)$/i.test(method) } = options;
    const body = JSON.stringify(options.body);
    if (Buffer.byteLength(body ?? "") > 2_000_000) throw new DqError("too large", "above 2 MB");
    const end = performance.now() + (options.retryFor ?? 10_000);
    for (let backoff = 100; ; backoff = Math.min(2 * backoff, 5_000)) {
      const url = this.#urls[0]!;
      try {
        return await send(url + path, { method, headers: this.#headers, body }, timeout, signal);
      } catch (error: any) {
        const pause = backoff * (0.5 + Math.random() / 2);
        const isAmbiguous = !repeat && error.kind === "outcome unknown";
        if (!error.isTemporary || isAmbiguous || performance.now() + pause > end) throw error;
        this.#onRetry?.(error);
        // Otherwise another call has passed to the next server.
        if (this.#urls[0] === url) this.#urls.push(this.#urls.shift()!);
        await sleep(pause, undefined, { signal });
      }
    }
  }
}

async function send(url: string, init: RequestInit, timeout: number, signal?: AbortSignal) {
  // Not AbortSignal.any with AbortSignal.timeout: Node.js 20 forgets such timeouts.
  const controller = new AbortController();
  const abort = () => controller.abort(new Error("timeout"));
  const timer = setTimeout(abort, timeout);
  signal?.addEventListener("abort", abort);
  try {
    signal?.throwIfAborted();
    const response = await fetch(url, { ...init, signal: controller.signal });
    return answer(response, await response.text());
  } catch (error: any) {
    signal?.throwIfAborted();
    if (error instanceof DqError) throw error;
    const text = `no answer from ${url}: ${describe(error)}`;
    const code = error.cause?.code ?? error.code ?? text; // Deno gives no code
    const isUnsent = /^ECONNREFUSED$|^ENOTFOUND$|client error \(Connect\)/.test(code);
    throw new DqError(isUnsent ? "unavailable" : "outcome unknown", text);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
  }
}

function answer({ status, ok, headers, url }: Response, text: string): unknown {
  const json = headers.get("content-type")?.includes("json") ? JSON.parse(text) : undefined;
  if (status === 204 || (json && (ok || json.result))) return json; // 409: the key's job runs
  const isFromProxy = status >= 502 && status <= 504;
  const kind = json?.title ?? (isFromProxy ? "outcome unknown" : "unexpected answer");
  throw new DqError(kind, json?.detail ?? `${url} has answered ${status}`, json?.remedy);
}

function newJob({ payload, delay, at, remember, ...options }: NewJob): object {
  const idempotencyKey = options.idempotencyKey ?? crypto.randomUUID();
  remember ??= options.idempotencyKey ? undefined : "10m";
  const times = { due: due(at ?? delay), remember: due(remember) };
  const fields = { ...options, ...times, idempotencyKey, payload: payload ?? null };
  const snakeCase = (name: string) => name.replace(/[A-Z]/g, "_$&").toLowerCase();
  const entries = Object.entries(fields).map(([name, value]) => [snakeCase(name), value]);
  return Object.fromEntries(entries);
}

function path(queue: string, job?: JobRef): string {
  const target = typeof job === "object" ? `key:${job.key}` : job;
  const jobs = `/v1/queues/${encodeURIComponent(queue)}/jobs`;
  return target === undefined ? jobs : `${jobs}/${encodeURIComponent(target)}`;
}
