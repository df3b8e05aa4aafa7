//! Where to begin to read: not at the beginning, if there is a copy of what came of it.
//!
//! Each message says where whoever wrote it would begin. So it takes no more than a look at the newest of
//! them; and, if those are of processes that have only just come, at some before them.

use std::sync::atomic::Ordering;

use dq_core::Result;
use futures_util::StreamExt;
use lapin::message::Delivery;

use super::Shared;
use super::command::{Command, Entry, Message, Piece, decode};
use super::tail::{Start, attach, offset_of};
use crate::error::{Effect, from_lapin};

/// Messages before the newest that are looked at.
const BACK: u64 = 200;

/// Where to begin, and what for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    /// Where a copy begins.
    pub(super) since: u64,
    /// The message that says so. Whoever wrote it had read the end of that copy; so who has read up to here
    /// and knows no state was told something wrong.
    pub(super) by: u64,
}

/// The newest whole copy, if the newest messages speak of one.
pub(super) async fn find(shared: &Shared) -> Result<Option<Told>> {
    match told(shared).await? {
        Some(told) if told.since > 0 && is_copy(shared, told.since).await? => Ok(Some(told)),
        _ => Ok(None),
    }
}

/// What the newest messages say of it.
async fn told(shared: &Shared) -> Result<Option<Told>> {
    let (_channel, mut newest) = attach(shared, Start::Newest, 1).await?;
    // Our own call to see all of the log is written meanwhile, so it is never empty for long.
    let Some(newest) = next(shared, &mut newest).await? else { return Ok(None) };
    let end = offset_of(&newest)?;
    let told = |message: &Delivery| -> Result<Option<Told>> {
        let by = offset_of(message)?;
        Ok(since(message).filter(|since| *since < by).map(|since| Told { since, by }))
    };
    if let Some(told) = told(&newest)? {
        return Ok(Some(told));
    }
    let first = Start::Offset(end.saturating_sub(BACK));
    let (_channel, mut messages) = attach(shared, first, 2 * BACK as u16).await?;
    let mut newest = None;
    while let Some(message) = next(shared, &mut messages).await? {
        newest = told(&message)?.or(newest);
        if offset_of(&message)? >= end {
            break;
        }
    }
    Ok(newest)
}

/// Whether a copy begins there. It may have fallen off the end of the log since; or whoever spoke of it had
/// not found out yet that the log was deleted.
async fn is_copy(shared: &Shared, since: u64) -> Result<bool> {
    let (_channel, mut messages) = attach(shared, Start::Offset(since), 1).await?;
    let Some(first) = next(shared, &mut messages).await? else { return Ok(false) };
    let begins = |entry: &Entry| matches!(entry.command, Command::Copy(Piece::Begin));
    let is_copy = |message: Message<Vec<Entry>>| message.entries.iter().any(begins);
    Ok(offset_of(&first)? == since && decode(&first.data).is_ok_and(is_copy))
}

async fn next(shared: &Shared, messages: &mut lapin::Consumer) -> Result<Option<Delivery>> {
    let patience = shared.settings.response_timeout;
    match tokio::time::timeout(patience, messages.next()).await {
        Ok(Some(message)) => {
            // Whoever waits for all of the log to be read sees that it goes on.
            shared.read.fetch_add(1, Ordering::Relaxed);
            message.map(Some).map_err(|error| {
                from_lapin("read the log", Effect::None, shared.consume.broker_info(), &error)
            })
        }
        Ok(None) | Err(_) => Ok(None),
    }
}

/// What a message says of it. One that cannot be read says nothing; whoever reads on is told why.
fn since(message: &Delivery) -> Option<u64> {
    decode(&message.data).ok()?.since
}
