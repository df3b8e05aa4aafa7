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
    use dq::FencingToken;
    use dq::prelude::*;

    use super::first::UnpaidOrder;

    #[derive(Clone)]
    struct Db;

    struct Order {
        paid: bool,
        in_checkout: bool,
    }

    impl Db {
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

mod dashboard {
    use dq::prelude::*;
    use dq_ops::{Actor, Ops, Role};
    use dq_web::Auth;

    fn mount(dq: Dq, token: String) -> dq::Result<axum::Router> {
        let auth = Auth::token(Actor::new("ops", Role::Admin), token)?;
        let app = axum::Router::new().nest_service("/ops/dq", dq_web::router(Ops::new(dq), auth));
        Ok(app)
    }
}
