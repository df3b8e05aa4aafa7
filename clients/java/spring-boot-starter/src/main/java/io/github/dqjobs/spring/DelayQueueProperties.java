package io.github.dqjobs.spring;

import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * Settings of the client and the worker.
 *
 * @param url address of the server, or several of one store, separated by commas
 * @param token a token of the role operator, or of a worker if the application only handles jobs
 */
@ConfigurationProperties("dq")
public record DelayQueueProperties(
        @DefaultValue("http://127.0.0.1:7373") String url,
        String token,
        @DefaultValue Worker worker) {
    /**
     * Settings of the worker.
     *
     * @param enabled false: this process runs no jobs
     * @param concurrency how many jobs run at once
     * @param lease how soon another process takes the jobs of one that has crashed
     * @param shutdownTimeout how long a shutdown waits for running handlers
     */
    public record Worker(
            @DefaultValue("true") boolean enabled,
            @DefaultValue("10") int concurrency,
            @DefaultValue("30s") Duration lease,
            @DefaultValue("25s") Duration shutdownTimeout) {}
}
