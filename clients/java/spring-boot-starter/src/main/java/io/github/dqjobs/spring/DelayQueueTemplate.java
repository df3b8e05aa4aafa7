package io.github.dqjobs.spring;

import com.fasterxml.jackson.databind.ObjectMapper;
import io.github.dqjobs.DelayQueueClient;
import io.github.dqjobs.NewJob;
import java.time.Duration;

/** The client, with an enum's constants as codes. */
public class DelayQueueTemplate extends DelayQueueClient {
    public DelayQueueTemplate(String url, String token, ObjectMapper payloads) {
        super(url, token, payloads);
    }

    public Scheduled schedule(Enum<?> code, Object payload, Duration delay) {
        return schedule(code.name(), payload, delay);
    }

    /** Schedules a job that you can find, move and cancel by its key. */
    public Scheduled schedule(Enum<?> code, Object payload, Duration delay, String key) {
        return schedule(new NewJob(code.name(), payload).after(delay).key(key));
    }

    /** Cancels a waiting job. Throws {@code conflict} if it runs, {@code not found} if none with the key waits. */
    public void cancel(Enum<?> code, String key) {
        cancel(code.name(), "key:" + key);
    }
}
