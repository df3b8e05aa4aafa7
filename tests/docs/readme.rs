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

        dq.schedule::<order_timeout>(UnpaidOrder { id: 1001 })
            .after(15.minutes())
            .key("order-1001")
            .await?;
        dq.cancel::<order_timeout>("order-1001").await?;

        dq.schedule::<order_timeout>(UnpaidOrder { id: 1002 }).after(3.seconds()).await?;

        dq.runner().run_until(tokio::signal::ctrl_c()).await
    }
}

mod handler {
    use dq::FencingToken;
    use dq::prelude::*;

    use super::first::UnpaidOrder;

    #[derive(Clone)]
    pub(super) struct Db;

    struct Order {
        paid: bool,
        in_checkout: bool,
    }

    impl Db {
        pub(super) fn in_memory() -> Self {
            Self
        }

        async fn order(&self, id: u64) -> Result<Order, std::io::Error> {
            Ok(Order { paid: id == 1, in_checkout: id == 2 })
        }

        async fn close(&self, _id: u64, _token: FencingToken) -> Result<(), std::io::Error> {
            Ok(())
        }
    }

    #[delay_handler("CLOSE_ORDER", backoff(initial = "1s", factor = 2.0, max = "10m"))]
    async fn close_order(
        ctx: JobContext,
        State(db): State<Db>,
        order: UnpaidOrder,
    ) -> HandlerResult {
        let found = db.order(order.id).await?;
        if found.paid {
            return Ok(Outcome::skip("paid"));
        }
        if found.in_checkout {
            return Ok(Outcome::snooze(1.minutes()));
        }
        db.close(order.id, ctx.fencing_token()).await?;
        Ok(Outcome::Done)
    }
}

mod testing {
    use dq::prelude::*;
    use dq_testkit::TestKit;

    use super::first::{UnpaidOrder, order_timeout};
    use super::handler::Db;

    #[tokio::test]
    async fn an_unpaid_order_is_cancelled_after_15_minutes() -> dq::Result<()> {
        let kit = TestKit::with(|runner| runner.state(Db::in_memory())).await?;
        kit.dq()
            .schedule::<order_timeout>(UnpaidOrder { id: 1 })
            .after(15.minutes())
            .key("o-1")
            .await?;

        kit.assert_scheduled::<order_timeout>("o-1", 15.minutes()).await;
        let ran = kit.advance(30.minutes()).await;
        assert_eq!(ran[0].outcome(), "done");
        Ok(())
    }
}
