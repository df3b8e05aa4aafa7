//! Every type that can be a due time.

use std::time::{Duration, SystemTime};

use dq::{Dq, Due, DurationExt, Outcome, Timestamp};

dq::queue!(ORDER_TIMEOUT: u64);

async fn reschedule(dq: &Dq, at: Timestamp) -> dq::Result<()> {
    dq.reschedule::<ORDER_TIMEOUT>(1, Duration::from_secs(60)).await?;
    dq.reschedule::<ORDER_TIMEOUT>(1, at).await?;
    dq.reschedule::<ORDER_TIMEOUT>(1, SystemTime::now()).await?;
    dq.queue("ORDER_TIMEOUT")?.reschedule(1, Due::NOW).await?;
    Ok(())
}

fn main() {
    let _ = [
        Outcome::snooze(60.seconds()),
        Outcome::snooze(SystemTime::now()),
        Outcome::snooze(Timestamp::EPOCH),
        Outcome::snooze(Due::NOW),
    ];
    let _ = reschedule;
}
