//! Reads payloads again that stand somewhere in the log.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

use bytes::Bytes;
use dq_core::{Headers, Result};
use futures_util::StreamExt;
use lapin::options::BasicAckOptions;

use super::command::{Command, Entry, Piece, Scheduling, decode};
use super::replica::Place;
use super::tail::{Start, attach, offset_of};
use super::{Log, Shared};
use crate::error::{Effect, from_lapin};

/// Messages that the broker sends ahead.
const AHEAD: u16 = 64;
/// It is quicker to read over this many messages than to begin elsewhere.
const LEAP: u64 = 2_000;

/// Payloads and headers by where they stand.
pub(crate) type Found = HashMap<Place, (Bytes, Headers)>;

impl Log {
    /// Reads the payloads and headers at these places. What is not there any more is left out.
    pub(crate) async fn read(&self, places: Vec<Place>) -> Result<Found> {
        read(&self.shared, places).await
    }
}

pub(super) async fn read(shared: &Shared, places: Vec<Place>) -> Result<Found> {
    let mut found = Found::with_capacity(places.len());
    let mut wanted: BTreeMap<u64, Vec<Place>> = BTreeMap::new();
    for place in places {
        wanted.entry(place.offset).or_default().push(place);
    }
    let near = {
        let state = shared.state();
        let messages =
            wanted.keys().filter_map(|offset| Some((*offset, state.window.get(*offset)?.clone())));
        messages.collect::<Vec<_>>()
    };
    for (offset, message) in near {
        pick(&message, &wanted.remove(&offset).unwrap_or_default(), &mut found)?;
    }
    while let Some(first) = wanted.keys().next().copied() {
        read_from(shared, first, &mut wanted, &mut found).await?;
    }
    Ok(found)
}

/// Reads from this offset on for as long as what is wanted is not far ahead.
async fn read_from(
    shared: &Shared,
    first: u64,
    wanted: &mut BTreeMap<u64, Vec<Place>>,
    found: &mut Found,
) -> Result<()> {
    let failed = |error: lapin::Error| {
        from_lapin("read the log", Effect::None, shared.consume.broker_info(), &error)
    };
    let (channel, mut messages) = attach(shared, Start::Offset(first), AHEAD).await?;
    let patience = shared.settings.response_timeout;
    let mut unacknowledged = 0;
    while let Some(next) = wanted.keys().next().copied() {
        let Ok(Some(delivery)) = tokio::time::timeout(patience, messages.next()).await else {
            return Err(shared.unanswered("read the log", Effect::None));
        };
        let delivery = delivery.map_err(failed)?;
        let offset = offset_of(&delivery)?;
        shared.read.fetch_add(1, Ordering::Relaxed);
        // What stood before the first that is there is gone.
        while let Some(entry) = wanted.first_entry().filter(|entry| *entry.key() < offset) {
            entry.remove();
        }
        if let Some(places) = wanted.remove(&offset) {
            pick(&delivery.data, &places, found)?;
        } else if next > offset + LEAP {
            break;
        }
        unacknowledged += 1;
        if unacknowledged == AHEAD / 2 {
            unacknowledged = 0;
            let all = BasicAckOptions { multiple: true };
            channel.basic_ack(delivery.delivery_tag, all).await.map_err(failed)?;
        }
    }
    // The channel goes with its consumer; nobody waits for that.
    let _ = channel.close(200, "read".into()).await;
    Ok(())
}

fn pick(message: &[u8], places: &[Place], found: &mut Found) -> Result<()> {
    let entries = decode(message)?.entries;
    for place in places {
        if let Some(job) = entries.get(place.entry as usize).and_then(|entry| job(entry, *place)) {
            found.insert(*place, (job.payload.clone(), job.headers.clone()));
        }
    }
    Ok(())
}

pub(super) fn job(entry: &Entry, place: Place) -> Option<&Scheduling> {
    match &entry.command {
        Command::Schedule(jobs) => jobs.get(place.job as usize),
        Command::Park(found) => found.get(place.job as usize).map(|(job, _)| job),
        Command::Copy(Piece::Jobs(_, jobs)) => jobs.get(place.job as usize).map(|job| &job.job),
        _ => None,
    }
}
