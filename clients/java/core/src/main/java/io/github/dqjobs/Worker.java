package io.github.dqjobs;

import com.fasterxml.jackson.databind.JsonNode;
import java.lang.System.Logger.Level;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.FutureTask;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;

/**
 * Runs due jobs, each at least once, and under a lease that is renewed while its handler runs. The handler's thread
 * is interrupted when the lease is lost.
 */
public final class Worker implements AutoCloseable {
    /** Returns what the run has led to, or null for done. An exception is a failed attempt, which is retried. */
    @FunctionalInterface
    public interface Handler<T> {
        Outcome handle(T payload, Job job) throws Exception;
    }

    private record Answer(String result, String why, JsonNode error) {
        String reason() {
            return why != null ? why : error.path("detail").asText();
        }
    }

    private record Answers(List<Job> jobs, List<Answer> leases, List<Answer> results) {}

    private static final System.Logger LOG = System.getLogger(Worker.class.getName());
    private static final String NAME = ManagementFactory.getRuntimeMXBean().getName();
    private static final Duration FOREVER = Duration.ofDays(36_500);
    private final DelayQueueClient client;
    private final int concurrency;
    private final Duration lease;
    private final Duration shutdownTimeout;
    private final Semaphore slots;
    private final ScheduledExecutorService pool;
    private final Thread claims = new Thread(this::claim, "dq-claims");
    private final ExecutorService settler = Executors.newSingleThreadExecutor(task -> new Thread(task, "dq-settler"));
    private final Map<String, Handler<JsonNode>> handlers = new HashMap<>();
    private final Set<Run> running = ConcurrentHashMap.newKeySet();
    private final BlockingQueue<Run> ended = new LinkedBlockingQueue<>();
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
        pool.scheduleWithFixedDelay(this::renew, 0, lease.toMillis() / 4, TimeUnit.MILLISECONDS);
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
            if (!slots.tryAcquire(concurrency, shutdownTimeout.toMillis(), TimeUnit.MILLISECONDS)) {
                pool.shutdownNow();
                slots.tryAcquire(concurrency, 2, TimeUnit.SECONDS);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        pool.shutdownNow();
        settler.shutdown();
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
        long wait = Math.min(20_000, lease.toMillis() / 2);
        var queues = handlers.keySet().stream().collect(Collectors.toMap(code -> code, code -> free));
        String length = lease.toMillis() + "ms";
        var body = Map.of("queues", queues, "max", free, "wait", wait + "ms", "lease", length, "worker", NAME);
        long asked = System.nanoTime();
        Answers answers = ask("/v1/claims", body, Duration.ofMillis(wait + 10_000), FOREVER);
        if (answers.jobs() == null) {
            return List.of();
        }
        var claimed = answers.jobs().stream().map(job -> new Run(job, asked)).toList();
        running.addAll(claimed);
        if (System.nanoTime() - asked > lease.toNanos() / 2) {
            renew();
        }
        return claimed;
    }

    private void renew() {
        List<Run> held = List.copyOf(running);
        if (held.isEmpty()) {
            return;
        }
        long asked = System.nanoTime();
        try {
            var leases = held.stream().map(run -> run.job.lease()).toList();
            Answers answers = ask("/v1/leases:renew", Map.of("leases", leases), lease.dividedBy(4), lease.dividedBy(8));
            for (int i = 0; i < held.size(); i++) {
                Answer answer = answers.leases().get(i);
                if (answer.result().equals("renewed")) {
                    held.get(i).expires = asked + lease.toNanos();
                } else {
                    held.get(i).lose(answer.reason());
                }
            }
        } catch (RuntimeException e) {
            LOG.log(Level.WARNING, "a renewal of leases has failed", e);
        }
        held.stream().filter(run -> run.expires < System.nanoTime()).forEach(run -> run.lose("expired"));
    }

    private Answers ask(String path, Object body, Duration timeout, Duration patience) {
        var request = client.request("POST", body).timeout(timeout);
        return client.send(path, request, /* repeat= */ true, patience, Answers.class);
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

    /** Sends one request at a time. Outcomes that come meanwhile share the next one. */
    private void settle() {
        var batch = new ArrayList<Run>();
        ended.drainTo(batch, 1_000);
        settle(batch.stream().filter(run -> run.outcome != null).toList());
        batch.forEach(running::remove); // Until now their leases were renewed.
        slots.release(batch.size());
    }

    private void settle(List<Run> batch) {
        if (batch.isEmpty()) {
            return;
        }
        try {
            long expires = batch.stream().mapToLong(run -> run.expires).max().orElseThrow();
            var body = Map.of("results", batch.stream().map(Run::result).toList());
            Duration patience = Duration.ofNanos(expires - System.nanoTime());
            Answers answers = ask("/v1/leases:settle", body, DelayQueueClient.PATIENCE, patience);
            for (int i = 0; i < batch.size(); i++) {
                batch.get(i).settled(answers.results().get(i));
            }
        } catch (Throwable e) { // Also of a payload's getter: this thread settles all jobs.
            if (e instanceof DelayQueueException error && error.isTemporary()) {
                LOG.log(Level.ERROR, batch.size() + " jobs may run again", e);
            } else if (batch.size() > 1) { // One has a wrong form, or they are too large together.
                batch.forEach(run -> settle(List.of(run)));
            } else {
                batch.get(0).settled(new Answer("refused", e.toString(), null));
            }
        }
    }

    /** A claimed job. It is cancelled when it has lost its lease, and then has no outcome. */
    private final class Run extends FutureTask<Outcome> {
        private final Job job;
        private volatile long expires;
        private Outcome outcome;

        private Run(Job job, long asked) {
            super(() -> handle(job));
            this.job = job;
            this.expires = asked + lease.toNanos();
        }

        private void lose(String why) {
            if (cancel(true)) {
                LOG.log(Level.WARNING, "{0} has lost its lease: {1}", job.id(), why);
            }
        }

        @Override
        public void run() {
            super.run();
            Thread.interrupted(); // It was meant for the handler.
            try {
                outcome = get();
            } catch (CancellationException | ExecutionException | InterruptedException e) {
                LOG.log(Level.DEBUG, "{0} has no outcome: {1}", job.id(), e);
            }
            ended.add(this);
            settler.execute(Worker.this::settle);
        }

        private Map<String, Object> result() {
            var result = new HashMap<>(outcome.fields);
            result.put("lease", job.lease());
            return result;
        }

        /** Makes a refused outcome a failed attempt. */
        private void settled(Answer answer) {
            if (!answer.result().equals("settled")) {
                LOG.log(Level.WARNING, "{0}: the outcome is {1}: {2}", job.id(), answer.result(), answer.reason());
            }
            if (answer.result().equals("refused") && !outcome.fields.containsKey("error")) {
                outcome = Outcome.retry(Duration.ZERO, answer.reason());
                settle(List.of(this));
            }
        }
    }
}
