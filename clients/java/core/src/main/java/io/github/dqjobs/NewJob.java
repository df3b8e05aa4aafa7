package io.github.dqjobs;

import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;

/** A job to schedule, due at once unless you say when. Jobs with the same {@code id} are stored once. */
public record NewJob(String code, Map<String, Object> fields, String id) {
    /** A job for the handler of this code. The payload becomes JSON. */
    public NewJob(String code, Object payload) {
        this(code, new HashMap<>(), UUID.randomUUID().toString());
        fields.put("payload", payload);
    }

    public NewJob after(Duration delay) {
        return with("due", delay.toMillis() + "ms");
    }

    public NewJob at(Instant time) {
        return with("due", time.toString());
    }

    /** Your name for the job, by which you find, move and cancel it. One live job of a code has it. */
    public NewJob key(String key) {
        return with("key", key);
    }

    /** Any other field of the HTTP API: {@code on_conflict}, {@code group}, {@code headers}, {@code max_attempts}, … */
    public NewJob with(String field, Object value) {
        var changed = new HashMap<>(fields);
        changed.put(field, value);
        return new NewJob(code, changed, id);
    }
}
