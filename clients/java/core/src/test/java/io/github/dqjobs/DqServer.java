package io.github.dqjobs;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.Optional;

/** A {@code dq serve} on SQLite in a directory of its own, which can be killed and started again. */
public final class DqServer implements AutoCloseable {
    public static final String OPERATOR = "operator-0123456789";
    public static final String WORKER = "worker-0123456789ab";
    public static final String VIEWER = "viewer-0123456789ab";

    private final Path directory;
    private final int port;
    private Process process;

    public DqServer() {
        this("");
    }

    /** Starts a server with more configuration, such as settings of a queue. */
    public DqServer(String configuration) {
        try {
            port = freePort();
            directory = Files.createTempDirectory("dq-java");
            Files.writeString(
                    directory.resolve("dq.toml"), """
                    %s
                    [backend]
                    type = "sqlite"
                    path = "jobs.db"

                    [defaults]
                    max_attempts = 3
                    backoff = { initial = "200ms", factor = 1.0, max = "200ms", jitter = 0 }

                    [serve]
                    address = "127.0.0.1:%d"
                    [serve.tokens.operator]
                    role = "operator"
                    token = "%s"
                    [serve.tokens.worker]
                    role = "worker"
                    queues = ["MAIL"]
                    token = "%s"
                    [serve.tokens.viewer]
                    role = "viewer"
                    token = "%s"
                    """.formatted(configuration, port, OPERATOR, WORKER, VIEWER));
            start();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static int freePort() throws IOException {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }

    /** Starts the program and waits until it says its address. */
    public void start() throws IOException {
        String dq = Optional.ofNullable(System.getenv("DQ_BIN"))
                .orElseThrow(
                        () -> new IllegalStateException(
                                "DQ_BIN must be the path of dq: build it with `cargo build -p dq-cli`, then set DQ_BIN=$PWD/target/debug/dq"));
        process = new ProcessBuilder(dq, "serve")
                .directory(directory.toFile())
                .redirectErrorStream(true)
                .start();
        BufferedReader output = process.inputReader();
        var said = new StringBuilder();
        for (String line = ""; !line.startsWith("token"); said.append(line)) {
            line = output.readLine();
            if (line == null) {
                throw new IOException("dq serve has ended: " + said);
            }
        }
        Thread reader = new Thread(() -> output.lines().forEach(line -> System.out.println("dq serve: " + line)));
        reader.setDaemon(true);
        reader.start();
    }

    /** As kill -9 does. */
    public void kill() throws InterruptedException {
        process.destroyForcibly().waitFor();
    }

    public String url() {
        return "http://127.0.0.1:" + port;
    }

    public DelayQueueClient client() {
        return new DelayQueueClient(url(), OPERATOR);
    }

    @Override
    public void close() {
        try (var files = Files.walk(directory)) {
            kill();
            files.sorted(Comparator.reverseOrder())
                    .forEach(file -> file.toFile().delete());
        } catch (IOException | InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
