//! "Continue reading?", two hours after the last page. Each page turn replaces the reminder for
//! that reader and book, so the two hours start again.
//!
//! ```sh
//! cargo run -p dq-examples --example reading_progress
//! ```

use std::time::Duration;

use dq::prelude::*;
use dq_examples::all_ended;
use serde::{Deserialize, Serialize};

/// Two hours in the real world.
const IDLE: Duration = Duration::from_millis(300);

#[derive(Serialize, Deserialize)]
struct Progress {
    reader: String,
    book: String,
    page: u32,
}

#[delay_handler("CONTINUE_READING")]
async fn continue_reading(progress: Progress) {
    let Progress { reader, book, page } = progress;
    println!("{reader}: continue {book:?} at page {page}?");
}

/// Called for each page turn; returns whether the reminder was set.
async fn turn_page(dq: &Dq, reader: &str, book: &str, page: u32) -> dq::Result<bool> {
    let progress = Progress { reader: reader.to_owned(), book: book.to_owned(), page };
    let scheduled = dq
        .schedule::<continue_reading>(progress)
        .after(IDLE)
        .key(format!("{reader}/{book}"))
        .on_conflict(OnConflict::Replace)
        // A page turned while the reminder is being sent counts too.
        .on_running(OnRunning::Detach)
        .await?;
    Ok(scheduled.is_stored())
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let dq = Dq::connect("memory:").await?;
    for page in 1..=40 {
        turn_page(&dq, "ann", "Emma", page).await?;
    }
    println!("ann: {}", turn_page(&dq, "ann", "Persuasion", 7).await?);
    println!("bob: {}", turn_page(&dq, "bob", "Emma", 3).await?);
    let queue = dq.queue_of::<continue_reading>()?;
    println!("reminders: {}", queue.stats().await?.live());
    dq.runner().run_until(all_ended(queue)).await
}
