package shop;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.OffsetDateTime;
import javax.sql.DataSource;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.dao.DataIntegrityViolationException;
import org.springframework.jdbc.core.simple.JdbcClient;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.transaction.annotation.EnableTransactionManagement;
import org.springframework.transaction.annotation.Transactional;

/**
 * Orders that expire unless they are paid: each row and its job in one transaction. The table is
 * {@code orders (reference text PRIMARY KEY, paid boolean NOT NULL DEFAULT false)}.
 */
public class Orders {
    private final JdbcClient db;

    Orders(JdbcClient db) {
        this.db = db;
    }

    @Transactional
    public String place(String reference, OffsetDateTime due, String card) {
        db.sql("INSERT INTO orders (reference) VALUES (?)").param(reference).update();
        String outcome = db.sql("""
                SELECT outcome FROM dq.schedule(
                    'ORDER_TIMEOUT', jsonb_build_object('reference', ?), ?, key => ?)""")
            .params(reference, due, reference).query(String.class).single();
        charge(card); // An exception rolls back the row and the job.
        return outcome;
    }

    @Transactional
    public String pay(String reference) {
        db.sql("UPDATE orders SET paid = true WHERE reference = ?").param(reference).update();
        return db.sql("SELECT dq.cancel('ORDER_TIMEOUT', ?)").param(reference)
            .query(String.class).single();
    }

    @Transactional
    public String move(String reference, OffsetDateTime due) {
        return db.sql("SELECT dq.reschedule('ORDER_TIMEOUT', ?, ?)").params(due, reference)
            .query(String.class).single();
    }

    @Transactional(readOnly = true)
    public String find(String reference) {
        return db.sql("SELECT state, payload FROM dq.get('ORDER_TIMEOUT', ?)").param(reference)
            .query((row, number) -> row.getString("state") + " " + new String(row.getBytes("payload"), UTF_8))
            .optional().orElse("none");
    }

    private static void charge(String card) {
        if (card.equals("expired")) {
            throw new IllegalStateException("card declined");
        }
    }

    @Configuration
    @EnableTransactionManagement
    static class Shop {
        @Bean
        DataSource database() {
            return new DriverManagerDataSource(System.getProperty("shop.database"));
        }

        @Bean
        DataSourceTransactionManager transactions(DataSource database) {
            return new DataSourceTransactionManager(database);
        }

        @Bean
        Orders orders(DataSource database) {
            return new Orders(JdbcClient.create(database));
        }
    }

    /** Needs {@code -Dshop.database=jdbc:postgresql://localhost/shop?user=shop}. */
    public static void main(String[] arguments) {
        OffsetDateTime now = OffsetDateTime.now();
        OffsetDateTime later = OffsetDateTime.parse("2100-01-01T00:00:00Z");
        try (var context = new AnnotationConfigApplicationContext(Shop.class)) {
            Orders orders = context.getBean(Orders.class);
            System.out.println("place: " + orders.place("Zoë 🎁", now, "valid"));
            try {
                orders.place("declined", now, "expired");
            } catch (IllegalStateException declined) {
                System.out.println("place: " + declined.getMessage());
            }

            System.out.println("place: " + orders.place("paid", later, "valid"));
            System.out.println("find: " + orders.find("paid"));
            System.out.println("pay: " + orders.pay("paid"));
            System.out.println("find: " + orders.find("paid"));

            System.out.println("place: " + orders.place("moved", later, "valid"));
            System.out.println("move: " + orders.move("moved", now));
            System.out.println("place: " + orders.place("open", later, "valid"));

            try {
                orders.place("line\nbreak", now, "valid");
            } catch (DataIntegrityViolationException refused) {
                System.out.println("refused: " + refused.getMessage());
            }
        }
    }
}
