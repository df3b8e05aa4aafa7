//! Client calls that accept several types.

use std::time::{Duration, SystemTime};

use dq::Due;
use dq::prelude::*;

dq::queue!(ORDER_TIMEOUT: u64);

async fn client() -> dq::Result<()> {
    let dq = Dq::connect("memory:").await?;
    dq.schedule::<ORDER_TIMEOUT>(1001).after(15.minutes()).key(17).await?;

    for stats in dq.stats().await? {
        assert_eq!(dq.queue(&stats.queue)?.stats().await?.scheduled, 1);
        let _ = dq.queue(stats.queue)?;
    }
    let _ = (dq.queue("ORDER_TIMEOUT")?, dq.queue(String::from("ORDER_TIMEOUT"))?);

    let view: JobView = dq.get::<ORDER_TIMEOUT>(17).await?.unwrap();
    assert_eq!((view.state, view.payload::<u64>()?), (JobState::Scheduled, 1001));
    assert!(view.payload::<String>().is_err());
    let id: JobId = view.job.id;
    assert_eq!(dq.get::<ORDER_TIMEOUT>(&id).await?, dq.get::<ORDER_TIMEOUT>("17").await?);
    assert_eq!(dq.cancel::<ORDER_TIMEOUT>(17).await?, Cancelled::Cancelled);
    for key in ["a", "b"].iter() {
        let _ = dq.schedule::<ORDER_TIMEOUT>(1).after(1.hours()).key(key).await?;
        assert_eq!(dq.cancel::<ORDER_TIMEOUT>(key.to_string()).await?, Cancelled::Cancelled);
    }
    let scheduled = dq.schedule::<ORDER_TIMEOUT>(1).after(1.hours()).key(u128::MAX).await?;
    assert_eq!(dq.cancel::<ORDER_TIMEOUT>(&scheduled).await?, Cancelled::Cancelled);

    dq.reschedule::<ORDER_TIMEOUT>(1, Duration::from_secs(60)).await?;
    dq.reschedule::<ORDER_TIMEOUT>(1, Timestamp::EPOCH).await?;
    dq.reschedule::<ORDER_TIMEOUT>(1, SystemTime::now()).await?;
    dq.queue("ORDER_TIMEOUT")?.reschedule(1, Due::NOW).await?;
    let _ = [
        Outcome::snooze(60.seconds()),
        Outcome::snooze(SystemTime::now()),
        Outcome::snooze(Timestamp::EPOCH),
        Outcome::snooze(Due::NOW),
    ];
    let _ = dq.schedule::<ORDER_TIMEOUT>(1).at(SystemTime::now()).await?;
    let _ = dq.schedule::<ORDER_TIMEOUT>(1).at(Timestamp::EPOCH).await?;
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
    client().await.unwrap();
    // This program is built without the feature.
    let error = Dq::connect("redis://127.0.0.1").await.unwrap_err().to_string();
    assert!(error.contains("features = [\"redis\"]"), "{error}");
    // Settings can be built outside the crate.
    let _ = QueueSettings::new();
}
