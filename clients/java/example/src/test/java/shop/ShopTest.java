package shop;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.dqjobs.DqServer;
import java.io.BufferedReader;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(120)
class ShopTest {
    @Test
    void theUnpaidOrderIsClosedAndThePaidOneIsNot() throws Exception {
        try (DqServer server = new DqServer()) {
            String java = ProcessHandle.current().info().command().orElseThrow();
            String classes = System.getProperty("java.class.path");
            var command = new ProcessBuilder(java, "-cp", classes, "shop.Shop", "--shop.pay-within=1s");
            command.environment().putAll(Map.of("DQ_URL", server.url(), "DQ_TOKEN", DqServer.OPERATOR));
            Process shop = command.redirectErrorStream(true).start();
            try (BufferedReader output = shop.inputReader()) {
                List<String> lines = output.lines()
                        .takeWhile(line -> !line.contains("order 1 is closed: it was not paid"))
                        .toList();
                assertThat(lines).anyMatch(line -> line.contains("order 2 is paid"));
                shop.toHandle().destroy();
                assertThat(output.lines()).noneMatch(line -> line.contains("order 2 is closed"));
                assertThat(shop.waitFor(10, TimeUnit.SECONDS)).isTrue();
            } finally {
                shop.destroyForcibly();
            }
        }
    }
}
