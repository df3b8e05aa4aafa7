//! A meeting reminder that moves with its meeting. If the meeting has begun, such as after an
//! outage, the reminder is skipped.
//!
//! ```sh
//! cargo run -p dq-examples --example meeting_reminder
//! ```

use std::time::SystemTime;

use dq::HistoryLimit;
use dq::prelude::*;
use dq_examples::all_ended;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Meeting {
    title: String,
}

// The reminder comes 15 minutes before the meeting, and is useless once it begins.
#[delay_handler("MEETING_REMINDER", late(after = "15m", then = "skip"))]
async fn remind(meeting: Meeting) {
    println!("in 15 minutes: {}", meeting.title);
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    // Keeps ended jobs in the history, to list them at the end.
    let settings = QueueSettings::new().history(HistoryLimit::default());
    let dq = Dq::builder().url("memory:").defaults(settings).connect().await?;
    let now = Timestamp::from(SystemTime::now());

    // With the meeting as key, you need no job id to move or cancel its reminder.
    for (key, title) in [("m-1", "planning"), ("m-2", "review"), ("m-3", "lunch")] {
        let meeting = Meeting { title: title.to_owned() };
        let reminder = dq.schedule::<remind>(meeting).at(now + 3.hours() - 15.minutes());
        println!("{title}: {}", reminder.key(key).await?.is_stored());
    }

    // The planning starts earlier: its reminder is due in half a second.
    println!("planning: {:?}", dq.reschedule::<remind>("m-1", now + 500.millis()).await?);
    // Lunch is cancelled.
    println!("lunch: {:?}", dq.cancel::<remind>("m-3").await?);
    // The review began an hour ago, and nobody sent the reminder.
    let due = now - 1.hours() - 15.minutes();
    println!("review: {:?}", dq.reschedule::<remind>("m-2", due).await?);

    let queue = dq.queue_of::<remind>()?;
    dq.runner().run_until(all_ended(queue.clone())).await?;
    for view in queue.browse(JobState::Ended).await?.jobs {
        if let (Some(key), Some(ended)) = (view.job.key, view.ended) {
            println!("{key}: {:?} {}", ended.ending, ended.reason.unwrap_or_default());
        }
    }
    Ok(())
}
