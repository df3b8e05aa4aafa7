package interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;

/** Runs the requests. Those on a delayed queue need it open; an open one transfers due entries. */
final class Commands {
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;
    private static final int TRIES = 4;

    private final Callable<RedissonClient> clients;
    private final RedissonClient client;
    private final Codecs codecs = new Codecs();
    private final Map<String, RDelayedQueue<Object>> open = new ConcurrentHashMap<>();
    private final Map<Long, Collector> collectors = new ConcurrentHashMap<>();
    private final AtomicLong lastCollector = new AtomicLong();

    /** {@code clients} creates a client at each call. */
    Commands(Callable<RedissonClient> clients) throws Exception {
        this.clients = clients;
        this.client = clients.call();
    }

    JsonNode run(JsonNode request) throws Exception {
        String command = request.path("command").asText();
        return switch (command) {
            case "open" -> open(request);
            case "destroy" -> destroy(request);
            case "offer" -> {
                delayed(request).offer(value(request), request.get("delay_ms").asLong(), TimeUnit.MILLISECONDS);
                yield JSON.nullNode();
            }
            case "delayed_remove" -> JSON.booleanNode(delayed(request).remove(value(request)));
            case "delayed_contains" -> JSON.booleanNode(delayed(request).contains(value(request)));
            case "delayed_size" -> JSON.numberNode(delayed(request).size());
            case "delayed_values" -> Values.writeAll(delayed(request).readAll());
            case "delayed_delete" -> JSON.booleanNode(delayed(request).delete());
            case "target_offer" -> JSON.booleanNode(target(request).offer(value(request)));
            case "target_take" -> Values.write(target(request).poll(timeout(request), TimeUnit.MILLISECONDS));
            case "target_size" -> JSON.numberNode(target(request).size());
            case "collect" -> collect(request);
            case "collected" -> collectors.get(request.get("collector").asLong()).within(timeout(request));
            default -> throw new IllegalArgumentException("unknown command " + command);
        };
    }

    private JsonNode open(JsonNode request) throws Exception {
        String key = key(request);
        RedissonClient opening = client;
        for (int attempt = 1; !open.containsKey(key); attempt++) {
            try {
                open.put(key, opening.getDelayedQueue(target(opening, request)));
            } catch (RedisException failure) {
                // On a busy machine a client sometimes fails to subscribe, permanently. It transfers
                // nothing then, so another client is created.
                if (attempt == TRIES || !String.valueOf(failure.getMessage()).contains("ubscri")) {
                    throw failure;
                }
                opening = clients.call();
            }
        }
        return JSON.nullNode();
    }

    private JsonNode destroy(JsonNode request) {
        delayed(request).destroy();
        open.remove(key(request));
        return JSON.nullNode();
    }

    private JsonNode collect(JsonNode request) {
        long number = lastCollector.incrementAndGet();
        collectors.put(number, new Collector(target(request), request.get("count").asInt()));
        return JSON.numberNode(number);
    }

    private RDelayedQueue<Object> delayed(JsonNode request) {
        RDelayedQueue<Object> queue = open.get(key(request));
        if (queue == null) {
            throw new IllegalStateException("the delayed queue " + key(request) + " is not open");
        }
        return queue;
    }

    private RBlockingQueue<Object> target(JsonNode request) {
        return target(client, request);
    }

    private RBlockingQueue<Object> target(RedissonClient client, JsonNode request) {
        String name = request.get("queue").asText();
        String codec = request.get("codec").asText();
        return codec.equals(Codecs.DEFAULT)
                ? client.getBlockingQueue(name)
                : client.getBlockingQueue(name, codecs.named(codec));
    }

    private static String key(JsonNode request) {
        return request.get("queue").asText() + " (" + request.get("codec").asText() + ")";
    }

    private static Object value(JsonNode request) {
        return Values.read(request.get("value"));
    }

    private static long timeout(JsonNode request) {
        return request.get("timeout_ms").asLong();
    }
}
