package io.github.dqjobs.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.dqjobs.DelayQueueClient;
import io.github.dqjobs.DqServer;
import io.github.dqjobs.Job;
import io.github.dqjobs.Outcome;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.autoconfigure.jackson.JacksonAutoConfiguration;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;

class StarterTest {
    private static final BlockingQueue<Object> SEEN = new LinkedBlockingQueue<>();
    private static DqServer server;
    private ApplicationContextRunner application = new ApplicationContextRunner()
            .withConfiguration(AutoConfigurations.of(JacksonAutoConfiguration.class, DelayQueueAutoConfiguration.class))
            .withPropertyValues("dq.url=" + server.url(), "dq.token=" + DqServer.OPERATOR, "dq.worker.lease=2s");

    @BeforeAll
    static void start() {
        server = new DqServer();
    }

    @AfterAll
    static void stop() {
        server.close();
    }

    enum Code {
        AI_QUEUE_RECORD_EXPIRED,
        WITH_JOB,
        FAILS
    }

    record Expired(long id, Instant since) {}

    static class Handlers {
        @DelayHandler("AI_QUEUE_RECORD_EXPIRED")
        void expired(List<Expired> records) {
            SEEN.add(records.get(0));
        }

        @DelayHandler("WITH_JOB")
        private Outcome withJob(Job job, String payload) {
            SEEN.add(payload + " " + job.attempt());
            return Outcome.skip("seen");
        }

        @DelayHandler("FAILS")
        void fails() {
            throw new IllegalStateException("no such record");
        }
    }

    static class Wrong {
        @DelayHandler("WRONG")
        int wrong() {
            return 1;
        }
    }

    @Test
    void anEnumConstantFindsItsMethod() {
        Expired record = new Expired(7, Instant.parse("2027-01-31T10:00:00Z"));
        application.withBean(Handlers.class).run(context -> {
            var template = context.getBean(DelayQueueTemplate.class);

            template.schedule(Code.AI_QUEUE_RECORD_EXPIRED, List.of(record), Duration.ofMillis(50));
            assertThat(SEEN.poll(10, TimeUnit.SECONDS)).isEqualTo(record);
            template.schedule("WITH_JOB", "text", Duration.ZERO);
            assertThat(SEEN.poll(10, TimeUnit.SECONDS)).isEqualTo("text 1");
        });
    }

    @Test
    void aMethodsExceptionIsTheErrorOfTheJob() {
        application.withBean(Handlers.class).run(context -> {
            var template = context.getBean(DelayQueueTemplate.class);

            String id = template.schedule(Code.FAILS, null, Duration.ZERO).id();

            String error = "null";
            while (error.equals("null")) {
                Thread.sleep(20);
                error = template.get("FAILS", id).path("last_error").asText();
            }
            assertThat(error).isEqualTo("java.lang.IllegalStateException: no such record");
        });
    }

    @Test
    void aKeyIsCancelled() {
        application.run(context -> {
            var template = context.getBean(DelayQueueTemplate.class);
            template.schedule(Code.WITH_JOB, 1, Duration.ofHours(1), "k");

            template.cancel(Code.WITH_JOB, "k");

            assertThatThrownBy(() -> template.cancel(Code.WITH_JOB, "k")).hasMessageStartingWith("not found");
        });
    }

    @Test
    void mistakesStopTheStart() {
        application
                .withBean(Wrong.class)
                .run(context -> assertThat(context)
                        .getFailure()
                        .rootCause()
                        .hasMessageContaining("returns Outcome or nothing"));
        application
                .withBean("one", Handlers.class)
                .withBean("two", Handlers.class)
                .run(context -> assertThat(context).getFailure().rootCause().hasMessageContaining("two handlers for"));
    }

    @Test
    void aProcessWithoutWorkerRunsNothing() {
        application
                .withBean(Handlers.class)
                .withPropertyValues("dq.worker.enabled=false")
                .run(context ->
                        assertThat(context).doesNotHaveBean(DelayHandlers.class).hasSingleBean(DelayQueueClient.class));
    }
}
