package interop;

import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RedissonClient;

/** Measures how fast Redisson transfers due entries to the target list. */
final class TransferRate {
    private static final long PAUSE_MS = 20;

    private TransferRate() {
    }

    /** Ends when {@code expected} entries were moved or the time is up. */
    static ObjectNode measure(RedissonClient client, RBlockingQueue<Object> target, long expected, long limitMs)
            throws InterruptedException {
        long before = target.size();
        long start = System.nanoTime();
        long moved = 0;
        long last = start;
        int failures = 0;
        RDelayedQueue<Object> delayed = client.getDelayedQueue(target);
        while (moved < expected && last - start < limitMs * 1_000_000) {
            Thread.sleep(PAUSE_MS);
            try {
                moved = target.size() - before;
            } catch (RuntimeException busy) {
                // A long transfer script blocks the server; the next size counts.
                failures++;
            }
            last = System.nanoTime();
        }
        delayed.destroy();
        ObjectNode rate = JsonNodeFactory.instance.objectNode();
        rate.put("moved", moved);
        rate.put("elapsed_ms", (last - start) / 1e6);
        rate.put("failures", failures);
        return rate;
    }
}
