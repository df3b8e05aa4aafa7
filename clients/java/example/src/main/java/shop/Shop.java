package shop;

import org.springframework.boot.ApplicationRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;

@SpringBootApplication
class Shop {
    public static void main(String[] args) {
        SpringApplication.run(Shop.class, args);
    }

    @Bean
    ApplicationRunner twoOrders(Orders orders) {
        return arguments -> {
            orders.place(1);
            orders.place(2);
            orders.pay(2);
        };
    }
}
