export * from "./client.ts";
export { Outcome, again, dead, fail, skip, snooze, throttle, type Duration } from "./outcomes.ts";
export * from "./worker.ts";
