package io.github.dqjobs;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.catchThrowableOfType;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

class ClientTest {
    private static final Duration HOUR = Duration.ofHours(1);
    private static DqServer server;
    private static DelayQueueClient client;

    @BeforeAll
    static void start() {
        server = new DqServer();
        client = server.client();
    }

    @AfterAll
    static void stop() {
        server.close();
    }

    @Test
    void aJobHasItsOptions() {
        Instant due = Instant.parse("2099-01-31T10:00:00Z");
        NewJob job = new NewJob("OPTIONS", Map.of("to", "ann"))
                .at(due)
                .key("a/ö b")
                .with("group", "customer-7")
                .with("max_attempts", 2)
                .with("headers", Map.of("source", "shop"));

        var scheduled = client.schedule(job);

        assertThat(scheduled.result()).isEqualTo("created");
        assertThat(scheduled.due()).isEqualTo(due);
        var found = client.get("OPTIONS", "key:a/ö b");
        assertThat(found.path("id").asText()).isEqualTo(scheduled.id());
        assertThat(found.path("group").asText()).isEqualTo("customer-7");
        assertThat(found.path("max_attempts").asInt()).isEqualTo(2);
        assertThat(found.path("headers").path("source").asText()).isEqualTo("shop");
        assertThat(found.at("/payload/json/to").asText()).isEqualTo("ann");
    }

    @Test
    void theSameJobIsStoredOnce() {
        NewJob job = new NewJob("ONCE", 1).after(HOUR);

        var once = client.schedule(job);
        var many = client.scheduleAll(List.of(new NewJob("ONCE", 2).key("other"), job));

        assertThat(many.get(0).result()).isEqualTo("created");
        assertThat(many.get(1).id()).isEqualTo(once.id());
        assertThatThrownBy(() -> client.scheduleAll(List.of(job, new NewJob("OTHER", 1))))
                .hasMessageContaining("OTHER");
        assertThat(client.schedule(new NewJob("ONCE", 1).after(HOUR)).id()).isNotEqualTo(once.id());
    }

    @Test
    void aKeyThatWaitsKeepsItsJobUnlessReplaced() {
        NewJob first = new NewJob("KEYS", 1).after(HOUR).key("k");
        client.schedule(first);

        var kept = client.schedule(new NewJob("KEYS", 2).key("k"));
        var replaced =
                client.schedule(new NewJob("KEYS", 3).after(HOUR).key("k").with("on_conflict", "replace"));

        assertThat(kept.result()).isEqualTo("kept");
        assertThat(replaced.result()).isEqualTo("replaced");
        assertThat(client.get("KEYS", "key:k").at("/payload/json").asInt()).isEqualTo(3);
    }

    @Test
    void aJobIsMovedAndCancelledByIdOrKey() {
        String id =
                client.schedule(new NewJob("MOVES", null).after(HOUR).key("k")).id();

        client.reschedule("MOVES", "key:k", Duration.ofHours(2));
        assertThat(client.where("MOVES", id).at("/now/reason").asText()).isEqualTo("not_due");
        client.cancel("MOVES", id);
        assertThat(client.get("MOVES", id).at("/ended/ending").asText()).isEqualTo("cancelled");
    }

    @Test
    void aCancelSaysThatTheJobRunsOrThatThereIsNone() {
        String id = client.schedule(new NewJob("BUSY", 1).key("k")).id();
        client.call("POST", "/v1/claims", Map.of("queues", Map.of("BUSY", 1)));

        assertThat(refusal(() -> client.cancel("BUSY", "key:k")).kind).isEqualTo("conflict");
        assertThat(refusal(() -> client.cancel("BUSY", id)).kind).isEqualTo("conflict");
        assertThat(refusal(() -> client.reschedule("BUSY", id, HOUR)).kind).isEqualTo("conflict");
        assertThat(refusal(() -> client.cancel("BUSY", "key:other")).kind).isEqualTo("not found");
        assertThat(refusal(() -> client.get("BUSY", "key:other")).kind).isEqualTo("not found");
    }

    @Test
    void aCancelOrAnyPostWhoseAnswerIsLostIsNotRepeated() throws IOException {
        var cancelling = cutOff();
        assertThat(refusal(() -> cancelling.cancel("CUT", "key:k")).kind).isEqualTo("outcome unknown");
        var posting = cutOff();
        var job = Map.of("payload", 1);
        assertThat(refusal(() -> posting.call("POST", "/v1/queues/CUT/jobs", job)).kind)
                .isEqualTo("outcome unknown");
        assertThat(cutOff().schedule("CUT", 1, HOUR).result()).isEqualTo("created");
    }

    /** A client whose first address closes the connection in place of an answer. */
    private static DelayQueueClient cutOff() throws IOException {
        var silent = new ServerSocket(0);
        CompletableFuture.runAsync(() -> {
            try (silent;
                    var connection = silent.accept()) {
                connection.getInputStream().read();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        });
        return new DelayQueueClient(
                "http://127.0.0.1:" + silent.getLocalPort() + "," + server.url(), DqServer.OPERATOR);
    }

    @Test
    void schedulesAreReachedByAnyCall() {
        client.call("PUT", "/v1/schedules/nightly", Map.of("queue", "REPORT", "every", "1h", "payload", 1));

        assertThat(client.call("GET", "/v1/schedules", null).at("/0/name").asText())
                .isEqualTo("nightly");
    }

    @Test
    void refusalsHaveAKindAndARemedy() {
        var badDelay = refusal(() -> client.schedule("Q", 1, Duration.ofDays(100_000)));
        assertThat(badDelay.kind).isEqualTo("invalid input");
        var badToken = new DelayQueueClient(server.url(), "no-such-token-at-all");
        var unauthenticated = refusal(() -> badToken.schedule("Q", 1, HOUR));
        assertThat(unauthenticated.kind).isEqualTo("unauthenticated");
        assertThat(unauthenticated.remedy).contains("authorization: Bearer TOKEN");
        assertThat(unauthenticated).hasMessageContaining(unauthenticated.remedy);
        var viewer = new DelayQueueClient(server.url(), DqServer.VIEWER);
        assertThat(refusal(() -> viewer.schedule("Q", 1, HOUR)).kind).isEqualTo("forbidden");
        assertThat(refusal(() -> client.where("Q", "key:none")).kind).isEqualTo("not found");
        assertThat(refusal(() -> client.call("GET", "/v1/schedules/none", null)).kind)
                .isEqualTo("not found");
    }

    @Test
    void theNextAddressIsTriedAndARestartIsWaitedFor() throws Exception {
        try (DqServer second = new DqServer()) {
            var both = new DelayQueueClient("http://127.0.0.1:1/, " + second.url() + "/ ", DqServer.OPERATOR);
            assertThat(both.schedule("Q", 1, HOUR).result()).isEqualTo("created");
            NewJob job = new NewJob("Q", 2).after(HOUR).key("k");
            String id = both.schedule(job).id();

            second.kill();
            var answer = CompletableFuture.supplyAsync(() -> both.schedule(job));
            second.start();

            assertThat(answer.get().id()).isEqualTo(id);
        }
    }

    private static DelayQueueException refusal(Runnable call) {
        return catchThrowableOfType(DelayQueueException.class, call::run);
    }
}
