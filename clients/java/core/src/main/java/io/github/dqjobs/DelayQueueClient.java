package io.github.dqjobs;

import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.PropertyNamingStrategies;
import com.fasterxml.jackson.databind.json.JsonMapper;
import java.io.IOException;
import java.net.ConnectException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.locks.LockSupport;

/**
 * Schedules, finds and changes jobs in a {@code dq serve}; one client serves all threads. {@code job} is an id, or
 * {@code key:} and a live job's key. While the server is away, a request is repeated for ten seconds, with the same id.
 */
public class DelayQueueClient {
    /** {@code result}: {@code created}, {@code replaced}, {@code kept}, {@code ended} or {@code already_running}. */
    public record Scheduled(String result, String id, Instant due) {}

    static final Duration PATIENCE = Duration.ofSeconds(10);
    private static final ObjectMapper ANSWERS = JsonMapper.builder()
            .findAndAddModules()
            .propertyNamingStrategy(PropertyNamingStrategies.SNAKE_CASE)
            .disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES)
            .build();
    final ObjectMapper payloads;
    private final HttpClient http =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private final String[] addresses;
    private final String token;
    private volatile int current;

    public DelayQueueClient(String url, String token) {
        this(url, token, JsonMapper.builder().findAndAddModules().build());
    }

    /** Separate several addresses of one store by commas. */
    public DelayQueueClient(String url, String token, ObjectMapper payloads) {
        this.addresses = url.strip().split("/*\\s*,\\s*|/+$");
        if (addresses.length == 0) {
            throw new IllegalArgumentException("\"" + url + "\" is no address");
        }
        this.token = token;
        this.payloads = payloads;
    }

    public Scheduled schedule(String code, Object payload, Duration delay) {
        return schedule(new NewJob(code, payload).after(delay));
    }

    public Scheduled schedule(NewJob job) {
        return scheduleAll(List.of(job)).get(0);
    }

    /**
     * Schedules 1 to 1,000 jobs of one code; one that is invalid prevents all. After an exception, repeat the call: no
     * job is stored twice.
     */
    public List<Scheduled> scheduleAll(Collection<NewJob> jobs) {
        record Results(List<Scheduled> results) {}
        var codes = jobs.stream().map(NewJob::code).distinct().toList();
        if (codes.size() != 1) {
            throw new IllegalArgumentException("the jobs have the codes " + codes + "; schedule each code by itself");
        }
        String path = "/v1/queues/" + encode(codes.get(0)) + "/jobs:schedule";
        var bodies = jobs.stream().map(job -> job.with("idempotency_key", job.id()));
        var request = request("POST", Map.of("jobs", bodies.map(NewJob::fields).toList()));
        return send(path, request, /* repeat= */ true, PATIENCE, Results.class).results();
    }

    /** Cancels a waiting job. Throws {@code conflict} if it runs, {@code not found} if none waits. */
    public void cancel(String code, String job) {
        call("DELETE", path(code, job), null);
    }

    /** Moves a waiting job. Throws as {@link #cancel} does. */
    public void reschedule(String code, String job, Duration delay) {
        call("PATCH", path(code, job), Map.of("due", delay.toMillis() + "ms"));
    }

    public JsonNode get(String code, String job) {
        return call("GET", path(code, job), null);
    }

    /** What has happened to a job, and why it does not run now. */
    public JsonNode where(String code, String job) {
        return call("GET", path(code, job) + "/timeline", null);
    }

    /**
     * Any other request, such as {@code call("PUT", "/v1/schedules/nightly", Map.of("every", "1h", …))}. If its answer is
     * lost, only a GET, HEAD, PUT or PATCH is repeated; another throws {@code outcome unknown}.
     */
    public JsonNode call(String method, String path, Object body) {
        // After a cancel that has taken effect, the next answer would be "not found".
        boolean repeat = List.of("GET", "HEAD", "PUT", "PATCH").contains(method);
        return send(path, request(method, body), repeat, PATIENCE, JsonNode.class);
    }

    private static String path(String code, String job) {
        return "/v1/queues/" + encode(code) + "/jobs/" + encode(job);
    }

    private static String encode(String name) {
        return URLEncoder.encode(name, StandardCharsets.UTF_8).replace("+", "%20");
    }

    HttpRequest.Builder request(String method, Object body) {
        byte[] json = payloads.valueToTree(body).toString().getBytes(StandardCharsets.UTF_8);
        if (json.length > 2_000_000) { // The server would close the connection.
            throw new DelayQueueException("too large", json.length + " bytes", null);
        }
        return HttpRequest.newBuilder()
                .timeout(PATIENCE)
                .headers("authorization", "Bearer " + token, "content-type", "application/json")
                .method(method, HttpRequest.BodyPublishers.ofByteArray(json));
    }

    /** Sends a request, and repeats it while the server is away. {@code repeat}: also after its answer is lost. */
    <T> T send(String path, HttpRequest.Builder draft, boolean repeat, Duration patience, Class<T> type) {
        long end = System.nanoTime() + patience.toNanos();
        for (long pause = 100; ; pause = Math.min(2 * pause, 5_000)) {
            URI uri = URI.create(addresses[current % addresses.length] + path);
            try {
                return sendOnce(draft.uri(uri).build(), type);
            } catch (DelayQueueException e) {
                boolean mayRepeat = e.isTemporary() && (repeat || !e.kind.equals("outcome unknown"));
                boolean isLate = System.nanoTime() - end > 0;
                if (!mayRepeat || isLate || Thread.currentThread().isInterrupted()) {
                    throw e;
                }
                current++;
            }
            LockSupport.parkNanos(ThreadLocalRandom.current().nextLong(pause / 2, pause) * 1_000_000);
        }
    }

    private <T> T sendOnce(HttpRequest request, Class<T> type) {
        try {
            var response = http.send(request, HttpResponse.BodyHandlers.ofByteArray());
            int status = response.statusCode();
            String contentType = response.headers().firstValue("content-type").orElse("");
            boolean isJson = contentType.contains("json");
            JsonNode body = isJson ? ANSWERS.readTree(response.body()) : ANSWERS.createObjectNode();
            // A raw call that schedules a job whose key's job is running is answered with 409, and yet a result.
            if (status == 204 || (isJson && status < 300) || body.has("result")) {
                return ANSWERS.treeToValue(body, type);
            }
            String kind = status >= 502 && status <= 504 ? "outcome unknown" : "unexpected answer";
            String detail = body.path("detail").asText(request.uri() + " has answered " + status);
            throw new DelayQueueException(
                    body.path("title").asText(kind), detail, body.path("remedy").asText(null));
        } catch (IOException e) {
            String kind = e instanceof ConnectException ? "unavailable" : "outcome unknown";
            throw new DelayQueueException(kind, request.uri() + ": " + e, null);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new DelayQueueException("outcome unknown", "the thread was interrupted", null);
        }
    }
}
