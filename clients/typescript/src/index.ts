export * from "./client.ts";
export { type CallOptions, type ConnectionOptions, DqError } from "./http.ts";
export { Outcome, again, dead, fail, skip, snooze, throttle, type Duration } from "./outcomes.ts";
export * from "./worker.ts";
