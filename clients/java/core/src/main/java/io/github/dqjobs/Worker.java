package io.github.dqjobs;

import com.fasterxml.jackson.databind.JsonNode;
import java.lang.System.Logger.Level;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;

/**
 * Runs due jobs, each at least once, and under a lease that is renewed while its handler runs. The handler's thread
 * is interrupted when the lease is lost or the job cancelled.
 */
public final class Worker implements AutoCloseable {
    /** Returns what the run has led to, or null for done. An exception is a failed attempt, which is retried. */
    @FunctionalInterface
    public interface Handler<T> {
        Outcome handle(T payload, Job job) throws Exception;
    }

    private record Answer(Instant until, String why, JsonNode error) {}

    private record Answers(List<Job> jobs, List<Answer> leases, List<Answer> results, Instant now) {}

    private static final System.Logger LOG = System.getLogger(Worker.class.getName());
    private static final Duration FOREVER = Duration.ofDays(36_500);
    private final DelayQueueClient client;
    private final int concurrency;
    private final Duration lease;
    private final Duration shutdownTimeout;
    private final Semaphore slots;
    private final ScheduledExecutorService pool;
    private final Thread claims = new Thread(this::claim, "dq-claims");
    private final Map<String, Handler<JsonNode>> handlers = new HashMap<>();
    private final Set<Run> runs = ConcurrentHashMap.newKeySet();
    private volatile boolean stopping;

    public Worker(DelayQueueClient client) {
        this(client, 10, Duration.ofSeconds(30), Duration.ofSeconds(25));
    }

    /** Runs so many jobs at once. When the process crashes, another one takes its jobs after the lease. */
    public Worker(DelayQueueClient client, int concurrency, Duration lease, Duration shutdownTimeout) {
        this.client = client;
        this.concurrency = concurrency;
        this.lease = lease;
        this.shutdownTimeout = shutdownTimeout;
        this.slots = new Semaphore(concurrency);
        this.pool = Executors.newScheduledThreadPool(concurrency + 1, task -> new Thread(task, "dq-worker"));
    }

    public <T> Worker on(String code, Class<T> type, Handler<? super T> handler) {
        Handler<JsonNode> typed = (json, job) -> handler.handle(client.payloads.treeToValue(json, type), job);
        if (handlers.putIfAbsent(code, typed) != null) {
            throw new IllegalStateException("there are two handlers for " + code);
        }
        return this;
    }

    /** Starts to claim jobs, and returns. SIGTERM closes the worker. */
    public Worker start() {
        long period = lease.toMillis() / 4;
        pool.scheduleWithFixedDelay(this::renew, period, period, TimeUnit.MILLISECONDS);
        claims.start();
        Runtime.getRuntime().addShutdownHook(new Thread(this::close, "dq-shutdown"));
        return this;
    }

    /** Claims no more, waits for running handlers, then interrupts the rest, whose jobs are handed back. */
    @Override
    public synchronized void close() {
        if (stopping) {
            return;
        }
        stopping = true;
        claims.interrupt();
        try {
            slots.tryAcquire(concurrency, shutdownTimeout.toMillis(), TimeUnit.MILLISECONDS);
            pool.shutdownNow();
            pool.awaitTermination(2, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            pool.shutdownNow();
            Thread.currentThread().interrupt();
        }
    }

    private void claim() {
        while (!stopping) {
            int free = 0;
            List<Run> claimed = List.of();
            try {
                slots.acquire();
                free = 1 + slots.drainPermits();
                claimed = claim(free);
            } catch (InterruptedException | RuntimeException e) {
                if (!stopping) {
                    LOG.log(Level.ERROR, "this worker cannot claim jobs, and tries again in five seconds", e);
                    LockSupport.parkNanos(5_000_000_000L);
                }
            } finally {
                slots.release(free - claimed.size());
            }
            claimed.forEach(pool::execute);
        }
    }

    private List<Run> claim(int free) {
        // Short enough that an answer after half the lease is late: the process may have been suspended meanwhile.
        Duration wait = Duration.ofMillis(Math.min(20_000, lease.toMillis() / 2));
        var queues = handlers.keySet().stream().collect(Collectors.toMap(code -> code, code -> free));
        var body = new HashMap<String, Object>(Map.of("queues", queues, "max", free));
        body.put("wait", wait.toMillis() + "ms");
        body.put("lease", lease.toMillis() + "ms");
        body.put("worker", ManagementFactory.getRuntimeMXBean().getName());
        long sent = System.nanoTime();
        Answers answers = ask("/v1/claims", body, wait.plusSeconds(10), FOREVER);
        var jobs = answers.jobs() == null ? List.<Job>of() : answers.jobs();
        var claimed =
                jobs.stream().map(job -> new Run(job, sent, answers.now())).toList();
        runs.addAll(claimed);
        if (!jobs.isEmpty() && System.nanoTime() - sent > lease.toNanos() / 2) {
            renew();
        }
        return claimed;
    }

    private void renew() {
        List<Run> held = List.copyOf(runs);
        if (held.isEmpty()) {
            return;
        }
        long sent = System.nanoTime();
        try {
            var leases = held.stream().map(run -> run.job.lease()).toList();
            Answers answers = ask("/v1/leases:renew", Map.of("leases", leases), lease.dividedBy(4), lease.dividedBy(8));
            for (int i = 0; i < held.size(); i++) {
                Answer answer = answers.leases().get(i);
                if (answer.until() != null) {
                    held.get(i).extend(sent, answers.now(), answer.until());
                } else {
                    held.get(i).lose(answer.toString());
                }
            }
        } catch (RuntimeException e) {
            LOG.log(Level.WARNING, "leases are not renewed", e);
        }
        held.stream().filter(run -> run.remaining().isNegative()).forEach(run -> run.lose("expired"));
    }

    private Answers ask(String path, Object body, Duration timeout, Duration patience) {
        return client.send(path, client.request("POST", body).timeout(timeout), patience, Answers.class);
    }

    private Outcome handle(Job job) {
        try {
            Outcome outcome = handlers.get(job.queue()).handle(job.payload(), job);
            return outcome == null ? Outcome.done() : outcome;
        } catch (Outcome outcome) {
            return outcome;
        } catch (Throwable e) {
            LOG.log(Level.WARNING, job.queue() + " " + job.id() + " has failed", e);
            return pool.isShutdown() ? new Outcome("released") : Outcome.retry(Duration.ZERO, e.toString());
        }
    }

    private void settle(Run run, Outcome outcome) {
        try {
            var result = new HashMap<>(outcome.fields);
            result.put("lease", run.job.lease());
            var body = Map.of("results", List.of(result));
            Answers answers = ask("/v1/leases:settle", body, DelayQueueClient.PATIENCE, run.remaining());
            Answer answer = answers.results().get(0);
            if (answer.error() != null) {
                throw DelayQueueClient.refusal(400, answer.error());
            } else if (answer.why() != null) {
                LOG.log(Level.WARNING, "{0} had lost its lease: {1}", run.job.id(), answer.why());
            }
        } catch (RuntimeException e) {
            LOG.log(Level.ERROR, run.job.id() + " is not settled", e);
            boolean refused = !(e instanceof DelayQueueException error) || error.status / 100 == 4;
            if (refused && !outcome.fields.containsKey("error")) {
                settle(run, Outcome.retry(Duration.ZERO, e.getMessage()));
            }
        }
    }

    /** A claimed job. It is cancelled when it has lost its lease, and then not settled. */
    private final class Run extends FutureTask<Outcome> {
        private final Job job;
        private volatile long ends;

        private Run(Job job, long sent, Instant now) {
            super(() -> handle(job));
            this.job = job;
            extend(sent, now, job.leaseEnds());
        }

        /** By the monotonic clock, and as if the server had answered when it was asked: rather too short. */
        private void extend(long sent, Instant now, Instant until) {
            ends = sent + Duration.between(now, until).toNanos();
        }

        private Duration remaining() {
            return Duration.ofNanos(ends - System.nanoTime());
        }

        private void lose(String why) {
            if (cancel(true)) {
                LOG.log(Level.WARNING, "{0} has lost its lease: {1}", job.id(), why);
            }
        }

        @Override
        public void run() {
            super.run();
            runs.remove(this);
            Thread.interrupted(); // It was meant for the handler.
            try {
                settle(this, get());
            } catch (CancellationException | ExecutionException | InterruptedException e) {
                LOG.log(Level.DEBUG, "{0} is not settled: {1}", job.id(), e);
            } finally {
                slots.release();
            }
        }
    }
}
