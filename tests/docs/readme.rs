//! README.

mod first {
    use dq::prelude::*;
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    pub struct UnpaidOrder {
        pub id: u64,
    }

    #[delay_handler("ORDER_TIMEOUT", max_attempts = 5, timeout = "30s")]
    pub async fn order_timeout(ctx: JobContext, order: UnpaidOrder) -> HandlerResult {
        println!("order {} was not paid, attempt {}", order.id, ctx.attempt());
        Ok(Outcome::Done)
    }

    #[tokio::main]
    async fn main() -> dq::Result<()> {
        let dq = Dq::connect("sqlite://jobs.db").await?;

        let scheduled = dq
            .schedule::<order_timeout>(UnpaidOrder { id: 1001 })
            .after(15.minutes())
            .key("order-1001")
            .await?;
        println!("due at {}", scheduled.due());

        let cancelled = dq.cancel::<order_timeout>("order-1001").await?;
        assert_eq!(cancelled, Cancelled::Cancelled);

        let soon =
            dq.schedule::<order_timeout>(UnpaidOrder { id: 1002 }).after(3.seconds()).await?;
        println!("order 1002 is due at {}", soon.due());

        dq.runner().run_until(dq::shutdown_signal()).await
    }
}

mod handler {
    use dq::prelude::*;

    use super::first::UnpaidOrder;

    #[derive(Clone)]
    struct Db;

    impl Db {
        async fn is_in_checkout(&self, id: u64) -> Result<bool, std::io::Error> {
            Ok(id == 2)
        }

        async fn close_if_unpaid(&self, id: u64) -> Result<bool, std::io::Error> {
            Ok(id > 2)
        }
    }

    #[delay_handler("CLOSE_ORDER", backoff(initial = "1s", factor = 2.0, max = "10m"))]
    async fn close_order(State(db): State<Db>, order: UnpaidOrder) -> HandlerResult {
        if db.is_in_checkout(order.id).await? {
            return Ok(Outcome::snooze(1.minutes()));
        }
        if !db.close_if_unpaid(order.id).await? {
            return Ok(Outcome::skip("paid"));
        }
        Ok(Outcome::Done)
    }
}
