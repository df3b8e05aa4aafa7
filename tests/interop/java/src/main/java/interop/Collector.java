package interop;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.redisson.api.RBlockingQueue;

/** Takes a number of values in its own thread and records when each was taken. */
final class Collector {
    private final ArrayNode arrivals = JsonNodeFactory.instance.arrayNode();
    private final RBlockingQueue<Object> target;
    private final int count;
    private Throwable failure;

    Collector(RBlockingQueue<Object> target, int count) {
        this.target = target;
        this.count = count;
        Thread thread = new Thread(this::take, "collector");
        thread.setDaemon(true);
        thread.start();
    }

    private void take() {
        try {
            for (int i = 0; i < count; i++) {
                arrived(target.take());
            }
        } catch (Throwable broken) {
            failed(broken);
        }
    }

    private synchronized void arrived(Object value) {
        ObjectNode arrival = arrivals.addObject();
        arrival.put("at_ms", System.currentTimeMillis());
        arrival.set("value", Values.write(value));
        notifyAll();
    }

    private synchronized void failed(Throwable broken) {
        failure = broken;
        notifyAll();
    }

    /** All values taken so far, as soon as they are complete or the time is up. */
    synchronized ArrayNode within(long milliseconds) throws InterruptedException {
        long end = System.nanoTime() + milliseconds * 1_000_000;
        while (arrivals.size() < count && failure == null) {
            long left = (end - System.nanoTime()) / 1_000_000;
            if (left <= 0) {
                break;
            }
            wait(left);
        }
        if (failure != null) {
            throw new IllegalStateException("the collector stopped", failure);
        }
        return arrivals.deepCopy();
    }
}
