//! Retries with backoff, dead jobs (a dead-letter queue), and a replay after the repair.
//!
//! ```sh
//! cargo run -p dq-examples --example retries_and_dead_letters
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dq::prelude::*;
use dq_examples::all_ended;

/// Fails for some orders until it is repaired.
#[derive(Clone, Default)]
struct Bank {
    is_repaired: Arc<AtomicBool>,
}

impl Bank {
    /// Returns whether the card was accepted. Here, order 1 succeeds at the third attempt, order 2
    /// has an expired card, and the bank never answers for order 3.
    async fn charge(&self, order: u32, attempt: u32) -> io::Result<bool> {
        match order {
            _ if self.is_repaired.load(Ordering::Relaxed) => Ok(true),
            1 if attempt >= 3 => Ok(true),
            2 => Ok(false),
            _ => Err(io::Error::other("the bank does not answer")),
        }
    }
}

/// In production, use more attempts and longer delays, and leave out `jitter`: delays then vary by
/// a fifth.
#[delay_handler("CHARGE", max_attempts = 3, backoff(initial = "50ms", factor = 2.0, jitter = 0.0))]
async fn charge(ctx: JobContext, State(bank): State<Bank>, order: u32) -> HandlerResult {
    println!("order {order}: attempt {} of {}", ctx.attempt(), ctx.max_attempts());
    // An error, a panic and a timeout are failed attempts. The last one makes the job dead.
    if !bank.charge(order, ctx.attempt()).await? {
        // A retry does not help.
        return Ok(Outcome::dead("the card has expired"));
    }
    println!("order {order}: charged");
    Ok(Outcome::Done)
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let dq = Dq::connect("memory:").await?;
    let bank = Bank::default();
    let queue = dq.queue_of::<charge>()?;
    dq.schedule_many((1..=3).map(|order| dq.schedule::<charge>(order).key(order))).await?;
    dq.runner().state(bank.clone()).run_until(all_ended(queue.clone())).await?;

    // Dead jobs stay in the store, with payload and reason, until you replay or remove them.
    for view in queue.browse(JobState::Dead).await?.jobs {
        let order: u32 = view.payload()?;
        if let Some((reason, _)) = view.dead {
            println!("order {order}: dead, {}: {}", reason.kind.as_str(), reason.message);
        }
    }

    bank.is_repaired.store(true, Ordering::Relaxed);
    // Replayed jobs are due now and have all attempts again. `replay_where` selects some, such as
    // by their error; `dq jobs replay` and the dashboard do the same.
    println!("replayed: {}", queue.replay_all().await?);
    dq.runner().state(bank).run_until(all_ended(queue.clone())).await?;
    println!("dead: {}", queue.stats().await?.dead);
    Ok(())
}
