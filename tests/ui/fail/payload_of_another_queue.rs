use dq::{Dq, delay_handler};

#[derive(serde::Serialize, serde::Deserialize)]
struct Order;

#[derive(serde::Serialize, serde::Deserialize)]
struct Mail;

#[delay_handler("ORDER_TIMEOUT")]
async fn order_timeout(_order: Order) {}

async fn schedule(dq: Dq) -> dq::Result<()> {
    dq.schedule::<order_timeout>(Mail).await?;
    Ok(())
}

fn main() {}
