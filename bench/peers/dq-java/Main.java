import io.github.dqjobs.DelayQueueClient;
import io.github.dqjobs.Outcome;
import io.github.dqjobs.Worker;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;

/** Runs jobs with our client for Java; see ../README.md for the arguments and the output. */
class Main {
    record Payload(long id, long due) {}

    public static void main(String[] arguments) {
        var client = new DelayQueueClient(arguments[1], System.getenv("DQ_TOKEN"));
        long millis = Long.parseLong(arguments[2]);
        new Worker(client, 16, Duration.ofSeconds(30), Duration.ofSeconds(25))
                .on("JOBS", Payload.class, (payload, job) -> {
                    long started = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
                    if (millis > 0) {
                        Thread.sleep(millis);
                    }
                    System.out.println(payload.id() + " " + payload.due() + " " + started);
                    return Outcome.done();
                })
                .start();
    }
}
