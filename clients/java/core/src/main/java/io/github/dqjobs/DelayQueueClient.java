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
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;

/**
 * Schedules, finds and changes jobs in a {@code dq serve}; one client serves all threads. {@code job} is an id, or
 * {@code key:} and a live job's key. A request without an answer is repeated for ten seconds, with the same id.
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
        this.addresses = url.split(",");
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
        String code = codes.get(0);
        var request =
                request("POST", Map.of("jobs", jobs.stream().map(NewJob::body).toList()));
        return send(path(code) + ":schedule", request, PATIENCE, Results.class).results();
    }

    /** Returns false if no such job waits: it runs, has ended, or never was. */
    public boolean cancel(String code, String job) {
        return find("DELETE", code, job, null).isPresent();
    }

    /** Returns false if no such job waits, as {@link #cancel}. */
    public boolean reschedule(String code, String job, Duration delay) {
        return find("PATCH", code, job, Map.of("due", delay.toMillis() + "ms")).isPresent();
    }

    public Optional<JsonNode> get(String code, String job) {
        return find("GET", code, job, null);
    }

    /** What has happened to a job, and why it does not run now. */
    public JsonNode where(String code, String job) {
        return call("GET", path(code) + "/" + encode(job) + "/timeline", null);
    }

    /** Any other request, such as {@code call("PUT", "/v1/schedules/nightly", Map.of("every", "1h", …))}. */
    public JsonNode call(String method, String path, Object body) {
        return send(path, request(method, body), PATIENCE, JsonNode.class);
    }

    private Optional<JsonNode> find(String method, String code, String job, Object body) {
        try {
            return Optional.of(call(method, path(code) + "/" + encode(job), body));
        } catch (DelayQueueException e) {
            if (e.status == 404 || e.status == 409) {
                return Optional.empty();
            }
            throw e;
        }
    }

    private static String path(String code) {
        return "/v1/queues/" + encode(code) + "/jobs";
    }

    private static String encode(String name) {
        return URLEncoder.encode(name, StandardCharsets.UTF_8).replace("+", "%20");
    }

    HttpRequest.Builder request(String method, Object body) {
        byte[] json = payloads.valueToTree(body).toString().getBytes(StandardCharsets.UTF_8);
        if (json.length > 2_000_000) { // The server would close the connection.
            throw new DelayQueueException(413, "too-large", json.length + " bytes", null);
        }
        return HttpRequest.newBuilder()
                .timeout(PATIENCE)
                .header("authorization", "Bearer " + token)
                .header("content-type", "application/json")
                .method(method, HttpRequest.BodyPublishers.ofByteArray(json));
    }

    /** Sends a request, and repeats it without an answer, until patience ends or the thread is interrupted. */
    <T> T send(String path, HttpRequest.Builder draft, Duration patience, Class<T> type) {
        long started = System.nanoTime();
        for (int attempt = 0; ; attempt++) {
            String address = addresses[current % addresses.length].strip();
            HttpRequest request = draft.uri(URI.create(address + path)).build();
            DelayQueueException error;
            // A DELETE may have taken effect: the next answer would be that there is no such job.
            boolean repeats = !request.method().equals("DELETE");
            try {
                if (attempt > 0) {
                    Thread.sleep(ThreadLocalRandom.current().nextLong(50, 100L << Math.min(attempt, 5)));
                }
                return read(http.send(request, HttpResponse.BodyHandlers.ofByteArray()), type);
            } catch (DelayQueueException e) {
                error = e;
                repeats &= e.status == 429 || e.status >= 502;
            } catch (IOException e) {
                error = new DelayQueueException(0, "unreachable", address + ": " + e, null);
                repeats |= e instanceof ConnectException;
                current++;
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new DelayQueueException(0, "interrupted", "the thread was interrupted", null);
            }
            if (!repeats || System.nanoTime() - started > patience.toNanos()) {
                throw error;
            }
        }
    }

    private static <T> T read(HttpResponse<byte[]> response, Class<T> type) throws IOException {
        boolean isJson =
                response.headers().firstValue("content-type").orElse("").contains("json");
        JsonNode body = isJson ? ANSWERS.readTree(response.body()) : ANSWERS.createObjectNode();
        // A raw call that schedules a job whose key's job is running is answered with 409, and yet a result.
        if (response.statusCode() >= 300 && !body.has("result")) {
            throw refusal(response.statusCode(), body);
        }
        return ANSWERS.treeToValue(body, type);
    }

    static DelayQueueException refusal(int status, JsonNode problem) {
        String kind = problem.path("type").asText("http-" + status).replace("urn:dq:error:", "");
        String detail = problem.path("detail").asText(problem.path("title").asText());
        return new DelayQueueException(
                status, kind, detail, problem.path("remedy").asText(null));
    }
}
