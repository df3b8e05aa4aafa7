//! What a handler can take and say.

use dq::FencingToken;
use dq::prelude::*;

use crate::first::UnpaidOrder;

#[derive(Clone)]
pub(crate) struct Db;

struct Order {
    paid: bool,
    in_checkout: bool,
}

impl Db {
    pub(crate) fn in_memory() -> Self {
        Self
    }

    async fn order(&self, id: u64) -> Result<Order, std::io::Error> {
        Ok(Order { paid: id == 1, in_checkout: id == 2 })
    }

    async fn close(&self, _id: u64, _token: FencingToken) -> Result<(), std::io::Error> {
        Ok(())
    }
}

// ---
#[delay_handler("CLOSE_ORDER", backoff(initial = "1s", factor = 2.0, max = "10m"))]
async fn close_order(ctx: JobContext, State(db): State<Db>, order: UnpaidOrder) -> HandlerResult {
    let found = db.order(order.id).await?; // any error: retried with backoff, then dead
    if found.paid {
        return Ok(Outcome::skip("paid")); // nothing to do
    }
    if found.in_checkout {
        return Ok(Outcome::snooze(1.minutes())); // not yet; uses no attempt
    }
    db.close(order.id, ctx.fencing_token()).await?;
    Ok(Outcome::Done) // also: Outcome::dead("never")
}
