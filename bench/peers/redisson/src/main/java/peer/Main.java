package peer;

import java.time.Instant;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** Stores and runs jobs with Redisson's delayed queue; see ../README.md for the arguments and the output. */
public final class Main {
    private static final int CONCURRENCY = 16;
    /** Calls whose replies are awaited at the same time; the delayed queue has no call for several jobs. */
    private static final int IN_FLIGHT = 256;

    public static void main(String[] args) throws Exception {
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.useSingleServer().setAddress("redis://" + args[1]);
        RedissonClient client = Redisson.create(config);
        RBlockingQueue<String> ready = client.getBlockingQueue("jobs");
        // Also starts the timer that moves due jobs to the blocking queue.
        RDelayedQueue<String> delayed = client.getDelayedQueue(ready);
        if (args[0].equals("store")) {
            store(delayed, ready, Integer.parseInt(args[2]), args[3], Long.parseLong(args[4]), Integer.parseInt(args[5]));
            delayed.destroy();
            client.shutdown();
        } else {
            work(ready, Long.parseLong(args[2]));
        }
    }

    private static void store(
            RDelayedQueue<String> delayed, RBlockingQueue<String> ready, int count, String how, long first, int rate)
            throws Exception {
        Semaphore permits = new Semaphore(IN_FLIGHT);
        long started = System.nanoTime();
        for (int id = 0; id < count; id++) {
            long now = System.currentTimeMillis();
            long due = first == 0 ? now : first + (rate == 0 ? 0 : id * 1000L / rate);
            String job = id + " " + due;
            var call = first == 0
                    ? ready.addAsync(job)
                    : delayed.offerAsync(job, Math.max(due - now, 0), TimeUnit.MILLISECONDS);
            if (how.equals("bulk")) {
                permits.acquire();
                call.whenComplete((result, error) -> permits.release());
            } else {
                call.get();
            }
        }
        // All calls have ended.
        permits.acquire(IN_FLIGHT);
        System.out.println((System.nanoTime() - started) / 1e9);
    }

    private static void work(RBlockingQueue<String> ready, long sleep) {
        for (int n = 0; n < CONCURRENCY; n++) {
            new Thread(() -> {
                try {
                    while (true) {
                        String job = ready.take();
                        Instant now = Instant.now();
                        long started = now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
                        Thread.sleep(sleep);
                        synchronized (System.out) {
                            System.out.println(job + " " + started);
                            System.out.flush();
                        }
                    }
                } catch (InterruptedException stopped) {
                    Thread.currentThread().interrupt();
                }
            }).start();
        }
    }

    private Main() {}
}
