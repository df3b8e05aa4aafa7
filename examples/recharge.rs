//! A recharge at a provider that answers later. It is polled with growing gaps until it succeeds,
//! and given up after half an hour.
//!
//! ```sh
//! cargo run -p dq-examples --example recharge
//! ```

use std::time::Duration;

use dq::prelude::*;
use dq_examples::all_ended;
use serde::{Deserialize, Serialize};

/// The first gap; a minute in the real world.
const FIRST_GAP: Duration = Duration::from_millis(50);

/// Polls after which the recharge is given up.
const MAX_POLLS: u32 = 6;

#[derive(Serialize, Deserialize)]
struct Recharge {
    number: u64,
    /// How often the provider was asked.
    polls: u32,
}

/// Asks the provider. Here, recharge 1 succeeds at the fourth poll, and recharge 2 never does.
async fn has_succeeded(recharge: &Recharge) -> Result<bool, std::io::Error> {
    Ok(recharge.number == 1 && recharge.polls >= 4)
}

/// Each poll is a step of one job. A failed poll is retried on its own, because attempts start
/// again with each step.
#[delay_handler("RECHARGE", max_attempts = 3)]
async fn poll(recharge: Recharge) -> HandlerResult {
    let recharge = Recharge { polls: recharge.polls + 1, ..recharge };
    if has_succeeded(&recharge).await? {
        println!("recharge {}: succeeded at poll {}", recharge.number, recharge.polls);
        return Ok(Outcome::Done);
    }
    if recharge.polls == MAX_POLLS {
        println!("recharge {}: given up, the money goes back", recharge.number);
        return Ok(Outcome::dead("the provider never answered"));
    }
    let gap = FIRST_GAP * 2_u32.pow(recharge.polls - 1);
    println!("recharge {}: not yet, next poll in {gap:?}", recharge.number);
    Ok(Outcome::again(gap, &recharge)?)
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let dq = Dq::connect("memory:").await?;
    for number in [1, 2] {
        let recharge = dq.schedule::<poll>(Recharge { number, polls: 0 });
        println!("recharge {number}: {}", recharge.after(FIRST_GAP).key(number).await?.is_stored());
    }
    dq.runner().run_until(all_ended(dq.queue_of::<poll>()?)).await
}
