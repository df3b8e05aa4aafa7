package io.github.dqjobs;

import com.fasterxml.jackson.annotation.JsonAlias;
import com.fasterxml.jackson.databind.JsonNode;
import java.time.Instant;
import java.util.Map;

/**
 * A job that a worker runs. Its {@code token} grows with each delivery: a receiver that refuses smaller ones is safe
 * from workers that have lost their lease.
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
