//! Offers an order to one courier after another. A courier who does not accept in time loses it to
//! the next. When nobody is left, a person decides.
//!
//! ```sh
//! cargo run -p dq-examples --example courier
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq::prelude::*;
use dq_examples::all_ended;
use serde::{Deserialize, Serialize};

/// How long a courier has to accept; five minutes in the real world.
const PATIENCE: Duration = Duration::from_millis(200);

const COURIERS: [&str; 3] = ["ann", "bob", "eve"];

/// Offers an order to a courier, by index.
#[derive(Serialize, Deserialize)]
struct Offer {
    order: u64,
    courier: usize,
}

/// Accepting couriers, by order.
#[derive(Clone, Default)]
struct Dispatch(Arc<Mutex<BTreeMap<u64, &'static str>>>);

impl Dispatch {
    fn courier(&self, order: u64) -> Option<&'static str> {
        self.0.lock().unwrap().get(&order).copied()
    }

    /// Asks a courier. Here, Eve accepts order 1, and nobody accepts order 2.
    fn offer(&self, order: u64, courier: usize) {
        println!("order {order}: offered to {}", COURIERS[courier]);
        if order == 1 && COURIERS[courier] == "eve" {
            self.0.lock().unwrap().insert(order, "eve");
        }
    }
}

/// Runs when a courier's time is over. Each offer is a step of one job, so cancelling the order's
/// key ends them all.
#[delay_handler("OFFER_TIMEOUT")]
async fn offer_timeout(State(dispatch): State<Dispatch>, offer: Offer) -> HandlerResult {
    if let Some(courier) = dispatch.courier(offer.order) {
        println!("order {}: {courier} delivers it", offer.order);
        return Ok(Outcome::Done);
    }
    let next = offer.courier + 1;
    if next == COURIERS.len() {
        println!("order {}: nobody delivers it", offer.order);
        return Ok(Outcome::dead("no courier has accepted"));
    }
    dispatch.offer(offer.order, next);
    Ok(Outcome::again(PATIENCE, &Offer { courier: next, ..offer })?)
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let dq = Dq::connect("memory:").await?;
    let dispatch = Dispatch::default();
    for order in [1, 2] {
        dispatch.offer(order, 0);
        let job = dq.schedule::<offer_timeout>(Offer { order, courier: 0 }).after(PATIENCE);
        if !job.key(order).await?.is_stored() {
            println!("order {order} is offered already");
        }
    }
    let queue = dq.queue_of::<offer_timeout>()?;
    dq.runner().state(dispatch).run_until(all_ended(queue.clone())).await?;
    println!("dead jobs: {}", queue.stats().await?.dead);
    Ok(())
}
