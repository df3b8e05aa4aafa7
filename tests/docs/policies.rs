//! Guide: escalations, guards, late jobs, versions.

use dq::prelude::*;

type DbError = std::io::Error;

#[derive(Clone)]
struct Shop;

impl Shop {
    async fn is_paid(&self, _order: u64) -> Result<bool, DbError> {
        Ok(false)
    }

    async fn remind(&self, _order: u64, _step: u32) -> Result<(), DbError> {
        Ok(())
    }

    async fn close(&self, _order: u64) -> Result<(), DbError> {
        Ok(())
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    id: u64,
}

#[delay_handler("UNPAID", escalate = ["15m", "1h", "1d"])]
async fn unpaid(ctx: JobContext, State(shop): State<Shop>, order: Order) -> HandlerResult {
    if shop.is_paid(order.id).await? {
        return Ok(Outcome::Done);
    }
    if ctx.is_last_step() {
        shop.close(order.id).await?;
        return Ok(Outcome::Done);
    }
    shop.remind(order.id, ctx.step()).await?; // step 0, then step 1
    Ok(Outcome::next_step())
}

#[delay_handler("DUE_TODAY", escalate = ["15m", "1h", "1d"], escalate_from = "first_due")]
async fn due_today(ctx: JobContext, State(shop): State<Shop>, order: Order) -> HandlerResult {
    shop.remind(order.id, ctx.step()).await?;
    Ok(if ctx.is_last_step() { Outcome::Done } else { Outcome::next_step() })
}

async fn is_still_unpaid(State(shop): State<Shop>, order: Order) -> Result<bool, DbError> {
    Ok(!shop.is_paid(order.id).await?)
}

#[delay_handler("GUARDED_TIMEOUT", guard = is_still_unpaid, guard_timeout = "5s")]
async fn close_order(State(shop): State<Shop>, order: Order) -> HandlerResult {
    shop.close(order.id).await?;
    Ok(Outcome::Done)
}

async fn remind_at(dq: &Dq, order: Order, midnight: Timestamp) -> dq::Result<()> {
    let job = dq.schedule::<unpaid>(order).at(midnight).spread(30.seconds());
    println!("due at {}", job.await?.due());
    Ok(())
}

#[derive(serde::Deserialize)]
struct InvoiceV1 {
    id: u64,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Invoice {
    number: String,
}

fn upgrade_v1(old: InvoiceV1) -> Invoice {
    Invoice { number: format!("R-{}", old.id) }
}

#[delay_handler(
    "DUNNING",
    version = 2,
    upgrade_from(1 = upgrade_v1),
    aliases = ["INVOICE_REMINDER"]
)]
async fn dunning(invoice: Invoice) {
    println!("invoice {} is not paid", invoice.number);
}
