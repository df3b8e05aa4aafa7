import { type CallOptions, type ConnectionOptions, Http } from "./http.ts";
import { type Duration, due } from "./outcomes.ts";

export type JobRef = string | { key: string };
export type When = { delay?: Duration; at?: never } | { delay?: never; at: Date | string };

export interface Policies {
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

export type NewJob = When & Policies;

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

export class Client {
  readonly #http: Http;

  constructor(options: ConnectionOptions = {}) {
    this.#http = new Http(options);
  }

  /** Schedules a job: exactly one, also if the connection breaks and the call is repeated. */
  async schedule(
    queue: string,
    payload: unknown,
    options: NewJob & CallOptions = {},
  ): Promise<Scheduled> {
    const { signal, retryFor, ...job } = options;
    return (await this.scheduleMany(queue, [{ ...job, payload }], { signal, retryFor }))[0]!;
  }

  /** Schedules up to 1,000 jobs in one call; one that is invalid prevents all. */
  async scheduleMany(
    queue: string,
    jobs: (NewJob & { payload: unknown })[],
    options?: CallOptions,
  ): Promise<Scheduled[]> {
    const body = { jobs: jobs.map(({ payload, ...job }) => newJob(payload, job)) };
    const path = `/v1/queues/${encodeURIComponent(queue)}/jobs:schedule`;
    return (await this.#http.send("POST", path, { ...options, body })).results;
  }

  /** Cancels a waiting job. `conflict`: it runs. `not found`: it has ended, or never was. */
  async cancel(queue: string, job: JobRef, options?: CallOptions): Promise<void> {
    await this.#http.send("DELETE", path(queue, job), options);
  }

  async reschedule(queue: string, job: JobRef, { at, delay, ...options }: When & CallOptions) {
    const body = { due: due(at ?? delay ?? "now") };
    await this.#http.send("PATCH", path(queue, job), { ...options, body });
  }

  get(queue: string, job: JobRef, options?: CallOptions): Promise<JobDetail> {
    return this.#http.send("GET", path(queue, job), options);
  }

  where(queue: string, job: JobRef, options?: CallOptions): Promise<Timeline> {
    return this.#http.send("GET", `${path(queue, job)}/timeline`, options);
  }
}

function newJob(payload: unknown, options: NewJob): object {
  const { delay, at, idempotencyKey, remember, ...policies } = options;
  const names = Object.entries(policies).map(([name, value]) => [
    name.replace(/[A-Z]/g, "_$&").toLowerCase(),
    value,
  ]);
  return {
    ...Object.fromEntries(names),
    payload: payload ?? null,
    due: due(at ?? delay),
    idempotency_key: idempotencyKey ?? crypto.randomUUID(),
    remember: due(remember ?? (idempotencyKey ? undefined : "10m")),
  };
}

function path(queue: string, job: JobRef): string {
  const target = typeof job === "string" ? job : `key:${job.key}`;
  return `/v1/queues/${encodeURIComponent(queue)}/jobs/${encodeURIComponent(target)}`;
}
