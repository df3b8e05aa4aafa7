//! A meeting reminder that moves with its meeting. If the meeting has begun, such as after an
//! outage, the reminder is skipped.
//!
//! ```sh
//! cargo run -p dq-examples --example meeting_reminder
//! ```

use std::time::SystemTime;

use dq::HistoryLimit;
use dq::prelude::*;
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

fn is_moved(answer: Rescheduled) -> bool {
    matches!(answer, Rescheduled::Moved(_))
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    // Keeps ended jobs in the history, to list them at the end.
    let settings = QueueSettings::new().history(HistoryLimit::default());
    let dq = Dq::builder().url("memory:").defaults(settings).connect().await?;
    let now = Timestamp::from(SystemTime::now());
    let remind_at = |meeting: Timestamp| Timestamp::from_millis(meeting.as_millis() - 15 * 60_000);

    // With the meeting as key, you need no job id to move or cancel its reminder.
    for (key, title) in [("m-1", "planning"), ("m-2", "review"), ("m-3", "lunch")] {
        let meeting = Meeting { title: title.to_owned() };
        let at = remind_at(now + 3.hours());
        println!(
            "{title}: {:?}",
            dq.schedule::<remind>(meeting).at(at).key(key).await?.is_stored()
        );
    }

    // The planning starts earlier: its reminder is due in half a second.
    let earlier = remind_at(now + 15.minutes() + 500.millis());
    println!("planning: {:?}", is_moved(dq.reschedule::<remind>("m-1", earlier).await?));
    // Lunch is cancelled.
    println!("lunch: {:?}", dq.cancel::<remind>("m-3").await?);
    // The review began an hour ago, and nobody sent the reminder.
    let began = remind_at(now - 1.hours());
    println!("review: {:?}", is_moved(dq.reschedule::<remind>("m-2", began).await?));

    let queue = dq.queue_of::<remind>()?;
    let all_ended = async {
        while !queue.stats().await.is_ok_and(|stats| stats.live() == 0) {
            tokio::time::sleep(20.millis()).await;
        }
    };
    dq.runner().run_until(all_ended).await?;
    for view in queue.browse(JobState::Ended).await?.jobs {
        let Some(ended) = view.ended else { continue };
        let key = view.job.key.as_ref().map_or("", dq::JobKey::as_str);
        println!("{key}: {:?} {}", ended.ending, ended.reason.unwrap_or_default());
    }
    Ok(())
}
