/** Milliseconds, or a text such as `"15m"`, `"1h 30m"` or `"2d"`. */
export type Duration = number | string;

/** How a run ended. Return it from a handler, or throw it. */
export class Outcome extends Error {
  readonly result: object;

  constructor(outcome: string, fields?: object) {
    super(outcome);
    this.result = { outcome, ...fields };
  }
}

/** There is nothing to do: the job ends. */
export const skip = (reason?: string) => new Outcome("skipped", { reason });
/** The job is dead: no retry. */
export const dead = (reason?: string) => new Outcome("dead", { reason });
/** The job runs again later, and no attempt is used. */
export const snooze = (until: Duration | Date) => new Outcome("snoozed", { delay: due(until) });
/** As `snooze`, and no other job of the queue starts before then, in any process. */
export const throttle = (until: Duration | Date) => new Outcome("throttled", { delay: due(until) });
/** The job's next step, with another payload. Attempts start again. */
export const again = (payload: unknown, next: Duration | Date = "now") =>
  new Outcome("again", { payload, delay: due(next) });
/** The attempt failed. The retry waits for the delay, if any, and the queue's backoff. */
export const fail = (error: unknown, delay?: Duration) =>
  new Outcome("failed", { error: describe(error), delay: due(delay) });

export function due(value: Duration | Date | undefined): string | undefined {
  if (value instanceof Date) return value.toISOString();
  return typeof value === "number" ? `${Math.round(value)}ms` : value;
}

/** Returns the error's text with its causes: `fetch` says why only there. */
export function describe(error: any): string {
  return error?.cause ? `${error}: ${describe(error.cause)}` : String(error);
}
