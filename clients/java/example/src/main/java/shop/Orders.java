package shop;

import io.github.dqjobs.DelayQueueException;
import io.github.dqjobs.Outcome;
import io.github.dqjobs.spring.DelayHandler;
import io.github.dqjobs.spring.DelayQueueTemplate;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.stereotype.Service;

/** Orders in memory. Each closes itself unless it is paid in time. */
@Service
class Orders {
    enum Status {
        OPEN,
        PAID,
        CLOSED
    }

    record CloseOrder(long order) {}

    private static final Logger LOG = LoggerFactory.getLogger(Orders.class);
    private final Map<Long, Status> orders = new ConcurrentHashMap<>();
    private final DelayQueueTemplate delays;
    private final Duration payWithin;

    Orders(DelayQueueTemplate delays, @Value("${shop.pay-within:15m}") Duration payWithin) {
        this.delays = delays;
        this.payWithin = payWithin;
    }

    void place(long order) {
        orders.put(order, Status.OPEN);
        delays.schedule(JobCode.CLOSE_ORDER, new CloseOrder(order), payWithin, "order-" + order);
        LOG.info("order {} is placed, and must be paid within {}", order, payWithin);
    }

    void pay(long order) {
        if (!orders.replace(order, Status.OPEN, Status.PAID)) {
            throw new IllegalStateException("order " + order + " cannot be paid any more");
        }
        try {
            delays.cancel(JobCode.CLOSE_ORDER, "order-" + order);
        } catch (DelayQueueException e) { // Such as a conflict: the job runs, and finds that the order is paid.
            LOG.warn("the job of order {} is not cancelled", order, e);
        }
        LOG.info("order {} is paid", order);
    }

    /** The job may be on its way while the order is paid, so the order itself decides. */
    @DelayHandler("CLOSE_ORDER")
    Outcome close(CloseOrder due) {
        if (!orders.replace(due.order(), Status.OPEN, Status.CLOSED)) {
            return Outcome.skip("the order is paid");
        }
        LOG.info("order {} is closed: it was not paid", due.order());
        return Outcome.done();
    }

    Status status(long order) {
        return orders.get(order);
    }
}
