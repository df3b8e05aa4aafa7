//! Debounce and throttle: many edits of one document, few jobs.
//!
//! ```sh
//! cargo run -p dq-examples --example debounce_by_key
//! ```

use std::time::Duration;

use dq::prelude::*;
use dq_examples::all_ended;
use serde::{Deserialize, Serialize};

/// Five seconds in the real world.
const QUIET: Duration = Duration::from_millis(300);

#[derive(Clone, Serialize, Deserialize)]
struct Edit {
    document: String,
    revision: u32,
}

/// Debounced: runs once, after the last edit.
#[delay_handler("UPDATE_INDEX")]
async fn update_index(edit: Edit) {
    println!("index: {} at revision {}", edit.document, edit.revision);
}

/// Throttled: runs at most once in each interval, however long the edits go on.
#[delay_handler("NOTIFY_READERS")]
async fn notify_readers(edit: Edit) {
    println!("mail: {} has changed since revision {}", edit.document, edit.revision);
}

async fn edited(dq: &Dq, edit: Edit) -> dq::Result<()> {
    let index = dq
        .schedule::<update_index>(edit.clone())
        .after(QUIET)
        .key(&edit.document)
        // The new job takes the old one's place, and its delay starts now.
        .on_conflict(OnConflict::Replace)
        // A running job may have read the old text, so this edit gets a job of its own.
        .on_running(OnRunning::Detach)
        .await?;
    // Without a policy, the job that has the key stays, with its payload and due time.
    let mail = dq.schedule::<notify_readers>(edit.clone()).after(QUIET).key(edit.document).await?;
    let is_replaced = matches!(index, Scheduled::Replaced(_));
    let is_kept = matches!(mail, Scheduled::Kept(_));
    println!("revision {}: index replaced {is_replaced}, mail kept {is_kept}", edit.revision);
    Ok(())
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let dq = Dq::connect("memory:").await?;
    for revision in 1..=5 {
        edited(&dq, Edit { document: "plan".to_owned(), revision }).await?;
    }
    let (index, mail) = (dq.queue_of::<update_index>()?, dq.queue_of::<notify_readers>()?);
    let ended = async { tokio::join!(all_ended(index), all_ended(mail)) };
    dq.runner().run_until(ended).await
}
