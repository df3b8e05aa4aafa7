import io.github.dqjobs.DelayQueueClient;
import io.github.dqjobs.Job;
import io.github.dqjobs.Outcome;
import io.github.dqjobs.Worker;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;

/** As worker.py. */
final class Workers {
    record Work(long work, String plan) {}

    private static Path file;

    private static void note(String event, Job job) throws IOException {
        String line = "%s %s %d %d\n".formatted(event, job.id(), job.token(), System.currentTimeMillis());
        Files.writeString(file, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }

    private static Outcome handle(Work work, Job job) throws Exception {
        note("start", job);
        Thread.sleep(work.work());
        if (work.plan().equals("fail") && job.attempt() == 1) {
            throw new IllegalStateException("as planned");
        }
        note("end", job);
        return work.plan().equals("again") ? Outcome.again(Duration.ZERO, new Work(work.work(), "done")) : null;
    }

    public static void main(String[] args) throws IOException {
        file = Path.of(args[2]);
        for (int i = 0; i < Integer.parseInt(args[4]); i++) {
            var client = new DelayQueueClient(args[0], args[1]);
            var lease = Duration.ofMillis(Long.parseLong(args[3]));
            new Worker(client, Integer.parseInt(args[5]), lease, Duration.ofSeconds(25))
                    .on("A", Work.class, Workers::handle)
                    .on("B", Work.class, Workers::handle)
                    .start();
        }
        System.in.readAllBytes();
        Runtime.getRuntime().halt(1);
    }
}
