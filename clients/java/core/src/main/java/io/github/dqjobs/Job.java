package io.github.dqjobs;

import com.fasterxml.jackson.annotation.JsonAlias;
import com.fasterxml.jackson.databind.JsonNode;
import java.time.Instant;
import java.util.Map;

/**
 * A job that a worker runs. {@code payload} is JSON; one that is not is its Base64 text, so take it as {@code byte[]}.
 * {@code token} grows with each delivery: a system that you write to can refuse smaller tokens than it has seen, as
 * their workers have lost the lease.
 */
public record Job(
        String queue,
        String id,
        String key,
        @JsonAlias("payload_base64") JsonNode payload,
        Map<String, String> headers,
        Instant due,
        int attempt,
        int maxAttempts,
        int deliveries,
        int step,
        long token,
        String lease) {}
