package interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * A Redisson client that is controlled over its standard input and output, one JSON object per line.
 *
 * <p>A request is {"command": name, …}. Its answer has either "ok" or "error". The first answer is the
 * version of Redisson. The end of the input ends the program.
 */
public final class Main {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final PrintStream answers;

    private Main(PrintStream answers) {
        this.answers = answers;
    }

    public static void main(String[] arguments) throws Exception {
        Main main = new Main(new PrintStream(System.out, true, StandardCharsets.UTF_8));
        // Output of libraries must not be mistaken for answers.
        System.setOut(System.err);
        Commands commands;
        try {
            commands = new Commands(() -> Connection.open(arguments));
        } catch (Exception | LinkageError refused) {
            main.failed(refused);
            System.exit(1);
            return;
        }
        main.done(JsonNodeFactory.instance.textNode(Connection.version()));
        main.serve(commands);
        // Without a shutdown of the clients: the tests are about clients that disappear.
        System.exit(0);
    }

    private void serve(Commands commands) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = JSON.readTree(line);
            answer(commands, request);
        }
    }

    private void answer(Commands commands, JsonNode request) {
        try {
            done(commands.run(request));
        } catch (Exception | LinkageError broken) {
            failed(broken);
        }
    }

    private void done(JsonNode result) {
        ObjectNode answer = JSON.createObjectNode();
        answer.set("ok", result);
        print(answer);
    }

    private void failed(Throwable reason) {
        StringBuilder text = new StringBuilder(reason.toString());
        for (Throwable cause = reason.getCause(); cause != null; cause = cause.getCause()) {
            text.append("; caused by ").append(cause);
        }
        ObjectNode answer = JSON.createObjectNode();
        answer.put("error", text.toString());
        print(answer);
    }

    private void print(ObjectNode answer) {
        answers.println(answer);
    }
}
