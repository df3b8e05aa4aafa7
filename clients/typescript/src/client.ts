import { Buffer } from "node:buffer";
import { type CallOptions, type ConnectionOptions, Http } from "./http.ts";
import { type Duration, due, encode } from "./outcomes.ts";

/** When a job is due: after a delay, at a time, or without both at once. */
export type When = { delay?: Duration; at?: never } | { delay?: never; at: Date | string };

export type ScheduleOptions = CallOptions &
  When & {
    /** Your name for the job: at most one waiting or running job of the queue has it. */
    key?: string;
    /** If a waiting job has the key; `keep`, the default, does not store the new job. */
    onConflict?: "keep" | "replace" | "earliest" | "latest";
    /** If a running job has the key; `refuse` is the default. */
    onRunning?: "refuse" | "detach";
    group?: string;
    headers?: Record<string, string>;
    maxAttempts?: number;
    /** The MIME type, if the payload is a `Uint8Array`. */
    contentType?: string;
    /** Calls with the same key store one job. */
    idempotencyKey?: string;
    /** How long the store knows the idempotency key after the job's end; a day by default. */
    remember?: Duration;
  };

export interface Scheduled {
  /** Only `created` and `replaced` mean that this job is stored. */
  result: "created" | "replaced" | "kept" | "already_running" | "ended";
  id: string;
  due: string;
}

/** A job by its id or its key. */
export type JobRef = string | { key: string };

/** A job as the server shows it. Times are RFC 3339 texts. */
export interface JobDetail {
  id: string;
  queue: string;
  key: string | null;
  group: string | null;
  state: "scheduled" | "ready" | "running" | "dead" | "ended";
  due: string;
  firstDue: string;
  attempts: number;
  deliveries: number;
  lastError: string | null;
  worker: string | null;
  dead: { kind: string; message: string; at: string } | null;
  ended: { ending: string; reason: string | null; at: string } | null;
}

export interface Timeline {
  job: JobDetail;
  events: { event: string; at: string | null; [field: string]: unknown }[];
  /** Why the job does not run now; `null` if it has ended. */
  now: { reason: string; [field: string]: unknown } | null;
}

/** Schedules, changes and shows jobs. */
export class Client {
  readonly #http: Http;

  constructor(options: ConnectionOptions = {}) {
    this.#http = new Http(options);
  }

  /** Schedules a job: exactly one, also if the connection breaks and the call is repeated. */
  async schedule(queue: string, payload: unknown, job: ScheduleOptions = {}): Promise<Scheduled> {
    const headers = { "idempotency-key": job.idempotencyKey ?? crypto.randomUUID() };
    const body = {
      ...encode(payload),
      content_type: job.contentType,
      due: due(job.at ?? job.delay),
      key: job.key,
      on_conflict: job.onConflict,
      on_running: job.onRunning,
      group: job.group,
      headers: job.headers,
      max_attempts: job.maxAttempts,
      remember: due(job.remember),
    };
    return this.#http.send("POST", jobPath(queue), { ...job, headers, body });
  }

  /** Schedules jobs, 16 at a time. Give them idempotency keys to repeat the call. */
  async scheduleMany(jobs: (ScheduleOptions & { queue: string; payload: unknown })[]) {
    const scheduled: Scheduled[] = [];
    const entries = jobs.entries();
    const take = async () => {
      for (const [i, { queue, payload, ...job }] of entries)
        scheduled[i] = await this.schedule(queue, payload, job);
    };
    await Promise.all(Array.from({ length: 16 }, take));
    return scheduled;
  }

  /** Cancels a waiting job. A `conflict` says that it runs, `not found` also that it has ended. */
  async cancel(queue: string, job: JobRef, options?: CallOptions): Promise<void> {
    await this.#http.send("DELETE", jobPath(queue, job), options);
  }

  /** Moves a waiting job. */
  async reschedule(queue: string, job: JobRef, { delay, at, ...options }: When & CallOptions) {
    const body = { due: due(at ?? delay ?? "now") };
    return this.#http.send("PATCH", jobPath(queue, job), { ...options, body });
  }

  async get(queue: string, job: JobRef, options?: CallOptions): Promise<JobDetail> {
    return this.#http.send("GET", jobPath(queue, job), options);
  }

  /** Says what has happened to a job, and what it waits for. */
  async where(queue: string, job: JobRef, options?: CallOptions): Promise<Timeline> {
    return this.#http.send("GET", `${jobPath(queue, job)}/timeline`, options);
  }
}

function jobPath(queue: string, job?: JobRef): string {
  const jobs = `/v1/queues/${segment(queue)}/jobs`;
  if (job === undefined) return jobs;
  return `${jobs}/${typeof job === "string" ? segment(job) : segment(job.key, "key")}`;
}

/** Writes a name with other characters in Base64, because proxies and `fetch` change some. */
function segment(name: string, type = ""): string {
  if (/^[\w-]+$/.test(name)) return type ? `${type}:${name}` : name;
  return `${type && `${type}-`}base64:${Buffer.from(name).toString("base64url")}`;
}
