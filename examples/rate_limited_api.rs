//! Calls an API at most 20 times a second, and waits when it answers *429 Too Many Requests*. Both
//! hold for all processes together.
//!
//! ```sh
//! cargo run -p dq-examples --example rate_limited_api
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dq::prelude::*;
use dq_examples::all_ended;

/// The provider's answer 429, with its `Retry-After`.
struct TooManyRequests(Duration);

/// Answers the third call with 429: somebody else has used up the account's calls.
#[derive(Clone, Default)]
struct Provider(Arc<AtomicU32>);

impl Provider {
    async fn send(&self, _sms: u32) -> Result<(), TooManyRequests> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            2 => Err(TooManyRequests(Duration::from_millis(300))),
            _ => Ok(()),
        }
    }
}

/// The rate keeps your own calls below the provider's limit. For a strict provider, set a little
/// less than it allows.
#[delay_handler("SEND_SMS", rate = "20/1s")]
async fn send_sms(ctx: JobContext, State(provider): State<Provider>, sms: u32) -> HandlerResult {
    if let Err(TooManyRequests(wait)) = provider.send(sms).await {
        println!("sms {sms}: 429, no call for {wait:?}");
        // Closes the whole queue, not only this job, and uses no attempt.
        return Ok(Outcome::throttle(wait));
    }
    println!("sms {sms}: sent at attempt {}", ctx.attempt());
    Ok(Outcome::Done)
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let dq = Dq::connect("memory:").await?;
    let jobs = (1..=8).map(|sms| dq.schedule::<send_sms>(sms));
    let scheduled = dq.schedule_many(jobs).await?.len();
    let start = Instant::now();
    let ended = all_ended(dq.queue_of::<send_sms>()?);
    dq.runner().state(Provider::default()).run_until(ended).await?;
    println!("{scheduled} SMS in {} ms", start.elapsed().as_millis());
    Ok(())
}
