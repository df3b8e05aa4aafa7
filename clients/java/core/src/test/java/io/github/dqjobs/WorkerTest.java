package io.github.dqjobs;

import static java.util.concurrent.TimeUnit.SECONDS;
import static org.assertj.core.api.Assertions.assertThat;

import com.fasterxml.jackson.databind.JsonNode;
import com.standardwebhooks.Webhook;
import com.sun.net.httpserver.HttpServer;
import java.io.BufferedReader;
import java.net.InetSocketAddress;
import java.net.http.HttpHeaders;
import java.net.http.HttpRequest;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(120)
class WorkerTest {
    record Mail(String to, Instant written) {}

    private static final Duration SECOND = Duration.ofSeconds(1);
    private final List<Worker> workers = new ArrayList<>();
    private final BlockingQueue<Job> seen = new LinkedBlockingQueue<>();
    private DqServer server;
    private DelayQueueClient client;

    @BeforeEach
    void start() {
        server = new DqServer();
        client = server.client();
    }

    @AfterEach
    void stop() {
        workers.forEach(Worker::close);
        server.close();
    }

    private Worker worker(int concurrency, Duration lease) {
        Worker worker = new Worker(client, concurrency, lease, SECOND);
        workers.add(worker);
        return worker;
    }

    /** Runs jobs of the code, tells the test, and answers as the function does. */
    private void handle(String code, Worker.Handler<JsonNode> handler) {
        worker(4, Duration.ofSeconds(10))
                .on(code, JsonNode.class, (payload, job) -> {
                    seen.add(job);
                    return handler.handle(payload, job);
                })
                .start();
    }

    private Job next() throws InterruptedException {
        return seen.poll(15, SECONDS);
    }

    /** A job is settled a moment after its handler has ended. */
    private JsonNode waitForState(String code, String id, String state) throws InterruptedException {
        for (int tries = 0; tries < 500; tries++) {
            JsonNode job = client.get(code, id);
            if (job.path("state").asText().equals(state)) {
                return job;
            }
            Thread.sleep(20);
        }
        throw new AssertionError(client.where(code, id).toPrettyString());
    }

    @Test
    void aJobFiresWithItsPayload() throws Exception {
        var received = new CompletableFuture<Mail>();
        Mail mail = new Mail("ann", Instant.parse("2027-01-31T10:00:00.123Z"));
        worker(1, SECOND)
                .on("MAIL", Mail.class, (payload, job) -> {
                    received.complete(payload);
                    return null;
                })
                .start();

        String id = client.schedule("MAIL", mail, Duration.ofMillis(100)).id();

        assertThat(received.get()).isEqualTo(mail);
        assertThat(waitForState("MAIL", id, "ended").at("/ended/ending").asText())
                .isEqualTo("done");
    }

    @Test
    void aFailedAttemptIsRetriedAndTheLastOneIsDead() throws Exception {
        handle("FAIL", (payload, job) -> {
            throw new IllegalArgumentException("no such account");
        });

        String id = client.schedule("FAIL", 1, Duration.ZERO).id();

        Job first = next();
        assertThat(first.attempt()).isEqualTo(1);
        Job second = next();
        assertThat(second.attempt()).isEqualTo(2);
        assertThat(second.due()).isAfterOrEqualTo(first.due().plusMillis(200));
        assertThat(next().attempt()).isEqualTo(3);
        assertThat(waitForState("FAIL", id, "dead").path("last_error").asText())
                .isEqualTo("java.lang.IllegalArgumentException: no such account");
    }

    @Test
    void eachOutcomeIsSettled() throws Exception {
        handle("OUTCOMES", (payload, job) -> switch (payload.asText()) {
            case "skip" -> Outcome.skip("paid");
            case "dead" -> throw Outcome.dead("no such order");
            case "snooze" -> job.deliveries() == 1 ? Outcome.snooze(Duration.ofMillis(50)) : Outcome.done();
            case "throttle" -> job.deliveries() == 1 ? Outcome.throttle(Duration.ofMillis(50)) : Outcome.done();
            case "retry" -> job.attempt() == 1 ? Outcome.retry(Duration.ofMillis(50), "busy") : Outcome.done();
            case "again" -> Outcome.again(Duration.ofMillis(50), "done");
            case "refused" -> Outcome.snooze(Duration.ofDays(1_000_000));
            default -> Outcome.done();
        });

        assertThat(waitForState("OUTCOMES", run("skip"), "ended")
                        .at("/ended/reason")
                        .asText())
                .isEqualTo("paid");
        assertThat(waitForState("OUTCOMES", run("dead"), "dead")
                        .at("/dead/message")
                        .asText())
                .isEqualTo("no such order");
        for (String twice : List.of("snooze", "throttle", "again")) {
            String id = run(twice);
            assertThat(next().attempt()).isEqualTo(1);
            Job again = next();
            assertThat(again.id()).isEqualTo(id);
            assertThat(again.attempt()).isEqualTo(1);
            waitForState("OUTCOMES", id, "ended");
        }
        run("retry");
        next();
        assertThat(next().attempt()).isEqualTo(2);
        run("refused");
        next();
        assertThat(next().attempt()).isEqualTo(2);
    }

    private String run(String outcome) throws InterruptedException {
        seen.clear();
        return client.schedule("OUTCOMES", outcome, Duration.ZERO).id();
    }

    @Test
    void outcomesThatComeDuringARequestShareTheNext() throws Exception {
        var sent = new CountDownLatch(1);
        var handled = new CountDownLatch(20);
        var requests = new LinkedBlockingQueue<String>();
        client = new DelayQueueClient(server.url(), DqServer.OPERATOR) {
            @Override
            <T> T send(String path, HttpRequest.Builder draft, boolean repeat, Duration patience, Class<T> type) {
                if (path.equals("/v1/leases:settle")) {
                    requests.add(path);
                    sent.countDown();
                    await(handled);
                }
                return super.send(path, draft, repeat, patience, type);
            }
        };
        var ids = new ArrayList<String>();
        for (int job = 0; job < 20; job++) {
            ids.add(client.schedule("SHARED", job, Duration.ZERO).id());
        }

        worker(20, Duration.ofSeconds(20))
                .on("SHARED", Integer.class, (payload, job) -> {
                    if (payload > 0) {
                        sent.await();
                    }
                    handled.countDown();
                    return null;
                })
                .start();

        for (String id : ids) {
            waitForState("SHARED", id, "ended");
        }
        assertThat(requests).hasSizeLessThan(20);
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    @Test
    void aMalformedOrLargeOutcomeHarmsNoOther() throws Exception {
        var together = new CyclicBarrier(4);
        var wrong = new Object() {
            public String getFails() {
                throw new IllegalStateException("no JSON");
            }
        };
        handle("MIXED", (payload, job) -> {
            together.await();
            return switch (payload.asInt()) {
                case 0 -> Outcome.again(Duration.ofHours(1), wrong);
                case 1 -> Outcome.again(Duration.ofHours(1), "x".repeat(3_000_000));
                default -> Outcome.again(Duration.ofHours(1), "x".repeat(900_000));
            };
        });
        var ids = new ArrayList<String>();
        for (int job = 0; job < 4; job++) {
            ids.add(client.schedule(new NewJob("MIXED", job).with("max_attempts", 1))
                    .id());
        }

        assertThat(waitForState("MIXED", ids.get(0), "dead").at("/dead/message").asText())
                .contains("no JSON");
        assertThat(waitForState("MIXED", ids.get(1), "dead").at("/dead/message").asText())
                .contains("too large");
        waitForState("MIXED", ids.get(2), "scheduled");
        waitForState("MIXED", ids.get(3), "scheduled");
    }

    @Test
    void aServersErrorForASharedRequestHarmsNoOutcome() throws Exception {
        var together = new CyclicBarrier(4);
        client = new DelayQueueClient(server.url(), DqServer.OPERATOR) {
            @Override
            HttpRequest.Builder request(String method, Object body) {
                boolean isShared = body instanceof Map<?, ?> map
                        && map.get("results") instanceof List<?> results
                        && results.size() > 1;
                if (isShared) {
                    throw new DelayQueueException("internal", "a request for several outcomes fails", null);
                }
                return super.request(method, body);
            }
        };
        handle("BROKEN", (payload, job) -> {
            together.await();
            return null;
        });
        var ids = new ArrayList<String>();
        for (int job = 0; job < 4; job++) {
            ids.add(client.schedule("BROKEN", job, Duration.ZERO).id());
        }

        for (String id : ids) {
            assertThat(waitForState("BROKEN", id, "ended").path("attempts").asInt())
                    .isZero();
        }
    }

    @Test
    void bytesAndNullArePayloads() throws Exception {
        var bytes = new CompletableFuture<byte[]>();
        worker(1, SECOND)
                .on("BYTES", byte[].class, (payload, job) -> {
                    bytes.complete(payload);
                    return null;
                })
                .start();
        handle("NULL", (payload, job) -> null);

        client.call(
                "POST", "/v1/queues/BYTES/jobs", Map.of("payload_base64", "AP8=", "content_type", "application/x-raw"));
        client.schedule("NULL", null, Duration.ZERO);

        assertThat(bytes.get()).containsExactly(0, 255);
        assertThat(next().payload().isNull()).isTrue();
    }

    @Test
    void aLongHandlerKeepsItsLeaseAndRunsOnce() throws Exception {
        var runs = new AtomicInteger();
        worker(2, Duration.ofSeconds(2))
                .on("LONG", Integer.class, (payload, job) -> {
                    runs.incrementAndGet();
                    // More than two leases; the time itself is the subject.
                    Thread.sleep(4500);
                    return null;
                })
                .start();

        String id = client.schedule("LONG", 1, Duration.ZERO).id();

        assertThat(waitForState("LONG", id, "ended").path("deliveries").asInt()).isEqualTo(1);
        assertThat(runs).hasValue(1);
    }

    @Test
    void aLostLeaseInterruptsTheHandler() throws Exception {
        var interrupted = new CountDownLatch(1);
        worker(1, Duration.ofSeconds(4))
                .on("LOST", Integer.class, (payload, job) -> {
                    seen.add(job);
                    try {
                        new CountDownLatch(1).await();
                    } catch (InterruptedException e) {
                        interrupted.countDown();
                        throw e;
                    }
                    return null;
                })
                .start();
        String id = client.schedule("LOST", 1, Duration.ZERO).id();
        Job job = next();

        var released = Map.of("results", List.of(Map.of("lease", job.lease(), "outcome", "dead", "reason", "by hand")));
        client.call("POST", "/v1/leases:settle", released);

        assertThat(interrupted.await(10, SECONDS)).isTrue();
        assertThat(client.get("LOST", id).at("/dead/message").asText()).isEqualTo("by hand");
    }

    @Test
    void withoutAServerTheLeaseEndsByItself() throws Exception {
        var interrupted = new CountDownLatch(1);
        worker(1, SECOND)
                .on("ALONE", Integer.class, (payload, job) -> {
                    seen.add(job);
                    try {
                        new CountDownLatch(1).await();
                    } catch (InterruptedException e) {
                        interrupted.countDown();
                    }
                    return null;
                })
                .start();
        client.schedule("ALONE", 1, Duration.ZERO);
        next();

        server.kill();

        assertThat(interrupted.await(10, SECONDS)).isTrue();
    }

    @Test
    void nothingIsLostWhenTheServerIsKilled() throws Exception {
        var gate = new Semaphore(0);
        var ids = new LinkedBlockingQueue<String>();
        worker(4, Duration.ofSeconds(20))
                .on("KILL", Integer.class, (payload, job) -> {
                    seen.add(job);
                    gate.acquire();
                    ids.add(job.id());
                    return null;
                })
                .start();
        var scheduled = new ArrayList<String>();
        for (int job = 0; job < 40; job++) {
            scheduled.add(client.schedule("KILL", job, Duration.ofMillis(20)).id());
        }
        next();
        server.kill();
        gate.release(1000); // Handlers end, and settle, while there is no server.
        while (ids.isEmpty()) {
            Thread.onSpinWait();
        }
        server.start();

        for (String id : scheduled) {
            assertThat(waitForState("KILL", id, "ended").path("deliveries").asInt())
                    .isEqualTo(1);
        }
        assertThat(ids).containsExactlyInAnyOrderElementsOf(scheduled);
    }

    @Test
    void closingWaitsForHandlersAndHandsBackTheRest() throws Exception {
        var gate = new Semaphore(0);
        handle("CLOSE", (payload, job) -> {
            if (payload.asText().equals("short")) {
                gate.acquire();
            } else {
                new CountDownLatch(1).await();
            }
            return null;
        });
        String shortJob = client.schedule("CLOSE", "short", Duration.ZERO).id();
        String longJob = client.schedule("CLOSE", "long", Duration.ZERO).id();
        next();
        next();

        gate.release();
        workers.get(0).close();

        assertThat(client.get("CLOSE", shortJob).path("state").asText()).isEqualTo("ended");
        JsonNode back = client.get("CLOSE", longJob);
        assertThat(back.path("state").asText()).isEqualTo("ready");
        assertThat(back.path("attempts").asInt()).isZero();
        client.schedule("CLOSE", "late", Duration.ZERO);
        assertThat(seen).isEmpty();
    }

    @Test
    void sigtermDrains() throws Exception {
        Process process = process();
        try (BufferedReader output = process.inputReader()) {
            String id = client.schedule("PROCESS", 300, Duration.ZERO).id();
            assertThat(output.readLine()).isEqualTo("begin " + id);

            process.toHandle().destroy();

            assertThat(output.readLine()).isEqualTo("end " + id);
            assertThat(process.waitFor(10, SECONDS)).isTrue();
            assertThat(client.get("PROCESS", id).path("state").asText()).isEqualTo("ended");
        } finally {
            process.destroyForcibly();
        }
    }

    @Test
    void aSuspendedProcessLosesItsJobToAnother() throws Exception {
        Process process = process();
        try (BufferedReader output = process.inputReader()) {
            String id = client.schedule("PROCESS", 60_000, Duration.ZERO).id();
            assertThat(output.readLine()).isEqualTo("begin " + id);
            signal(process, "STOP");

            handle("PROCESS", (payload, job) -> null);
            assertThat(next().deliveries()).isGreaterThan(1);
            waitForState("PROCESS", id, "ended");
            signal(process, "CONT");

            assertThat(output.lines().anyMatch(("interrupted " + id)::equals)).isTrue();
        } finally {
            process.destroyForcibly();
        }
    }

    private Process process() throws Exception {
        String java = ProcessHandle.current().info().command().orElseThrow();
        return new ProcessBuilder(
                        java, "-cp", System.getProperty("java.class.path"), WorkerProcess.class.getName(), server.url())
                .redirectError(ProcessBuilder.Redirect.DISCARD)
                .start();
    }

    private static void signal(Process process, String signal) throws Exception {
        // A minimal system has no program of this name.
        new ProcessBuilder("sh", "-c", "kill -s \"$1\" \"$2\"", "kill", signal, Long.toString(process.pid()))
                .start()
                .waitFor();
    }

    @Test
    void aTokenOfAWorkerClaimsFromItsQueuesOnly() throws Exception {
        client = new DelayQueueClient(server.url(), DqServer.WORKER);
        handle("MAIL", (payload, job) -> null);
        handle("OTHER", (payload, job) -> null);

        server.client().schedule("OTHER", 1, Duration.ZERO);
        server.client().schedule("MAIL", 1, Duration.ZERO);

        assertThat(next().queue()).isEqualTo("MAIL");
        assertThat(seen).isEmpty();
    }

    @Test
    void webhooksAreVerifiedByTheStandardPackage() throws Exception {
        String secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
        var verified = new CompletableFuture<String>();
        HttpServer receiver = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        receiver.createContext("/due", exchange -> {
            String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
            try {
                new Webhook(secret).verify(body, HttpHeaders.of(exchange.getRequestHeaders(), (name, value) -> true));
                verified.complete(body);
            } catch (Exception e) {
                verified.completeExceptionally(e);
            }
            exchange.sendResponseHeaders(204, -1);
        });
        receiver.start();
        String forward = """
                [queues.HOOK.forward]
                type = "http"
                url = "http://127.0.0.1:%d/due"
                allow = ["127.0.0.1"]
                secrets = ["%s"]
                """.formatted(receiver.getAddress().getPort(), secret);
        try (DqServer forwarding = new DqServer(forward)) {
            forwarding.client().schedule("HOOK", Map.of("order", 17), Duration.ZERO);

            assertThat(verified.get()).isEqualTo("{\"order\":17}");
        } finally {
            receiver.stop(0);
        }
    }
}
