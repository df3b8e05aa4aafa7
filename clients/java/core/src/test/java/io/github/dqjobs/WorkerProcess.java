package io.github.dqjobs;

import java.time.Duration;

/** A program with a worker, to be stopped by signals. */
final class WorkerProcess {
    private WorkerProcess() {}

    public static void main(String[] args) {
        new Worker(new DelayQueueClient(args[0], DqServer.OPERATOR), 2, Duration.ofSeconds(3), Duration.ofSeconds(25))
                .on("PROCESS", Integer.class, (millis, job) -> {
                    System.out.println("begin " + job.id());
                    try {
                        Thread.sleep(millis);
                    } catch (InterruptedException e) {
                        System.out.println("interrupted " + job.id());
                        throw e;
                    }
                    System.out.println("end " + job.id());
                    return null;
                })
                .start();
    }
}
