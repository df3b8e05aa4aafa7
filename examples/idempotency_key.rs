//! An idempotency key: a client repeats its request because it got no answer, and the order still
//! ships once.
//!
//! ```sh
//! cargo run -p dq-examples --example idempotency_key
//! ```

use dq::prelude::*;
use dq_examples::all_ended;

#[delay_handler("SHIP_ORDER")]
async fn ship_order(order: u64) {
    println!("order {order}: shipped");
}

/// Handles a request. The client has made its id, a UUID, and repeats it with the request.
async fn ship(dq: &Dq, idempotency_key: &str, order: u64) -> HandlerResult<()> {
    // An id names one job: the store keeps the first, and a repeated call changes nothing.
    let id: JobId = idempotency_key.parse()?;
    // After the job has ended, the store remembers its id for a day.
    let answer = dq.schedule::<ship_order>(order).id(id).remember(1.days()).await?;
    match answer {
        Scheduled::Ended(_) => println!("order {order}: this request was done before"),
        _ => println!("order {order}: accepted"),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> HandlerResult<()> {
    let dq = Dq::connect("memory:").await?;
    let queue = dq.queue_of::<ship_order>()?;
    ship(&dq, "0199a3c4-5f1e-7c22-b0d1-6a4f5e8d9c01", 17).await?;
    ship(&dq, "0199a3c4-5f1e-7c22-b0d1-6a4f5e8d9c01", 17).await?; // the job waits
    println!("jobs: {}", queue.stats().await?.live());
    dq.runner().run_until(all_ended(queue.clone())).await?;

    ship(&dq, "0199a3c4-5f1e-7c22-b0d1-6a4f5e8d9c01", 17).await?; // the job has ended
    ship(&dq, "0199a3c4-6b07-7d10-9a3e-2f8c1b7d4e02", 18).await?; // another request
    println!("jobs: {}", queue.stats().await?.live());
    dq.runner().run_until(all_ended(queue)).await?;
    Ok(())
}
