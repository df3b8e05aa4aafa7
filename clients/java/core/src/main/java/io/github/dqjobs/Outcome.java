package io.github.dqjobs;

import java.time.Duration;
import java.util.HashMap;
import java.util.Map;

/** What a run has led to. A handler returns it, or throws it from deep inside. */
public final class Outcome extends RuntimeException {
    final transient Map<String, Object> fields = new HashMap<>();

    Outcome(String outcome) {
        super(outcome, null, false, false);
        with("outcome", outcome);
    }

    Outcome with(String field, Object value) {
        fields.put(field, value);
        return this;
    }

    private Outcome after(Duration delay) {
        return with("delay", delay.toMillis() + "ms");
    }

    public static Outcome done() {
        return new Outcome("done");
    }

    /** There was nothing to do. */
    public static Outcome skip(String reason) {
        return new Outcome("skipped").with("reason", reason);
    }

    /** Runs again after the delay, without using an attempt. */
    public static Outcome snooze(Duration delay) {
        return new Outcome("snoozed").after(delay);
    }

    /** As {@link #snooze}, and no job of the queue starts before, in any process. */
    public static Outcome throttle(Duration delay) {
        return new Outcome("throttled").after(delay);
    }

    /** A failed attempt, as any other exception is. It is retried after this delay and the queue's backoff. */
    public static Outcome retry(Duration delay, String error) {
        return new Outcome("failed").after(delay).with("error", error);
    }

    /** No retry will help. */
    public static Outcome dead(String reason) {
        return new Outcome("dead").with("reason", reason);
    }

    /** The job's next step, with another payload. Attempts start again. */
    public static Outcome again(Duration delay, Object payload) {
        return new Outcome("again").after(delay).with("payload", payload);
    }
}
