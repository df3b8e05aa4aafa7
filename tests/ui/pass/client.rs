//! Client calls that accept several types.

use std::time::{Duration, SystemTime};

use dq::Due;
use dq::prelude::*;

dq::queue!(ORDER_TIMEOUT: u64);

async fn names_and_keys(dq: &Dq) -> dq::Result<()> {
    for stats in dq.stats().await? {
        let _ = (dq.queue(&stats.queue)?, dq.queue(stats.queue)?);
    }
    let _ = (dq.queue("ORDER_TIMEOUT")?, dq.queue(String::from("ORDER_TIMEOUT"))?);

    dq.schedule::<ORDER_TIMEOUT>(1001).after(15.minutes()).key(17).await?;
    let id: JobId = dq.get::<ORDER_TIMEOUT>(17).await?.unwrap().job.id;
    assert_eq!(dq.get::<ORDER_TIMEOUT>(&id).await?, dq.get::<ORDER_TIMEOUT>("17").await?);
    for key in ["a", "b"].iter() {
        let _ = dq.schedule::<ORDER_TIMEOUT>(1).after(1.hours()).key(key).await?;
        assert_eq!(dq.cancel::<ORDER_TIMEOUT>(key.to_string()).await?, Cancelled::Cancelled);
    }
    let scheduled = dq.schedule::<ORDER_TIMEOUT>(1).after(1.hours()).key(u128::MAX).await?;
    assert_eq!(dq.cancel::<ORDER_TIMEOUT>(&scheduled).await?, Cancelled::Cancelled);
    Ok(())
}

async fn due_times(dq: &Dq) -> dq::Result<()> {
    dq.reschedule::<ORDER_TIMEOUT>(1, Duration::from_secs(60)).await?;
    dq.reschedule::<ORDER_TIMEOUT>(1, SystemTime::now()).await?;
    dq.queue("ORDER_TIMEOUT")?.reschedule(1, Due::NOW).await?;
    let _ = [Outcome::snooze(60.seconds()), Outcome::snooze(Timestamp::EPOCH)];
    let _ = dq.schedule::<ORDER_TIMEOUT>(1).at(SystemTime::now()).await?;
    let _ = dq.schedule::<ORDER_TIMEOUT>(1).at(Zoned).await?;
    Ok(())
}

/// Another crate's point in time, which converts into `Timestamp`.
struct Zoned;

impl From<Zoned> for Timestamp {
    fn from(_: Zoned) -> Self {
        Self::from_millis(1_900_000_000_000)
    }
}

#[tokio::main]
async fn main() {
    let dq = Dq::connect("memory:").await.unwrap();
    names_and_keys(&dq).await.unwrap();
    due_times(&dq).await.unwrap();
}
