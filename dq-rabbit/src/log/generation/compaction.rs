//! Changes the log's generation and writes the snapshot at the beginning of the next one.

use std::sync::Arc;
use std::time::Duration;

use dq_core::machine::JobSnapshot;
use dq_core::{JobId, Result};
use futures_util::FutureExt;

use super::Generation;
use super::directory;
use crate::chunks::chunks;
use crate::error::LostReply;
use crate::log::fetch::{self, ReadPurpose};
use crate::log::pending::AppliedAt;
use crate::log::shared::LogShared;
use crate::log::state::replica::Replica;
use crate::log::state::snapshot::job_parts;
use crate::log::state::stored::StoredPayload;
use crate::log::wire::{Command, SnapshotEntry, SnapshotPart};

const FETCH_JOBS: usize = 5_000;
/// One job may be larger.
const FETCH_BYTES: u64 = 4 * 1024 * 1024;

/// How long a generation is kept after the next one is complete. Readers may be behind, and a
/// broker writes to its disk after it confirms: a single node without power must not lose a
/// snapshot together with the stream before. Tests wait for the deletion.
const GRACE: Duration = Duration::from_secs(if cfg!(test) { 30 } else { 120 });

/// With quick changes, this many numbers are kept during the grace time. Every second one is used,
/// so that is four generations.
const KEPT: u32 = 8;

/// How long a generation exists before the one before it is closed. A killed node loses its last
/// two seconds' declarations, with their streams.
const DECLARED_FOR: Duration = Duration::from_secs(4);

const PAUSE: Duration = Duration::from_secs(1);

const OPERATION: &str = "compact the log";

pub(in crate::log) async fn run(shared: Arc<LogShared>) {
    loop {
        shared.compaction_due.notified().await;
        let failure = compact(&shared).await.err();
        shared.state().change_failure.clone_from(&failure);
        if let Some(error) = failure {
            tracing::warn!(%error, "the log could not be compacted; it will be tried again");
            shared.clock.sleep(PAUSE).await;
        }
        // If work is left, the next own entry signals again.
        let _ = shared.compaction_due.notified().now_or_never();
        if let Err(error) = delete_old(&shared).await {
            tracing::warn!(%error, "old generations of the log could not be deleted yet");
        }
    }
}

/// Takes the remaining steps of a change; see [`directory`].
async fn compact(shared: &LogShared) -> Result<()> {
    let Some(generation) = shared.generation() else { return Ok(()) };
    let needs_close = shared.state().needs_close();
    if needs_close {
        announce(shared).await?;
        if !directory::prepare_next(shared, generation).await? {
            return Ok(());
        }
        shared.reached("declared").await;
        shared.clock.sleep(DECLARED_FOR).await;
        if shared.generation() != Some(generation) {
            return Ok(());
        }
        let close = Command::Close(generation.number());
        shared.call(OPERATION, LostReply::Unavailable, close, |_, (), _| ()).await?;
        shared.reached("closed").await;
    }
    if !shared.state().retention.is_complete() {
        write_snapshot(shared).await?;
    }
    announce(shared).await
}

async fn announce(shared: &LogShared) -> Result<()> {
    let generation = {
        let state = shared.state();
        let is_new = |generation: &Generation| Some(*generation) > state.announced;
        state.generation.filter(is_new).filter(|_| state.retention.is_complete())
    };
    let Some(generation) = generation else { return Ok(()) };
    directory::announce(shared, generation).await?;
    shared.reached("announced").await;
    let mut state = shared.state();
    state.announced = state.announced.max(Some(generation));
    Ok(())
}

/// Deletes earlier generations after the grace time, unless another change begins meanwhile.
async fn delete_old(shared: &LogShared) -> Result<()> {
    let Some(announced) = shared.state().announced else { return Ok(()) };
    delete(shared, announced, KEPT).await?;
    tokio::select! {
        () = shared.clock.sleep(GRACE) => delete(shared, announced, 0).await,
        () = shared.compaction_due.notified() => {
            shared.compaction_due.notify_one();
            Ok(())
        }
    }
}

/// Deletes earlier generations except the newest `kept` numbers. Deletes none if the broker has
/// lost the announced generation.
async fn delete(shared: &LogShared, announced: Generation, kept: u32) -> Result<()> {
    let topology = &shared.topology;
    if directory::locate(shared).await? < announced || !topology.has_generation(announced).await? {
        return Ok(());
    }
    let oldest = announced.back(kept);
    if !directory::retire_before(shared, oldest).await? {
        return Ok(());
    }
    shared.reached("retired").await;
    topology.delete_generations(oldest.before()).await?;
    shared.reached("deleted").await;
    Ok(())
}

type StoredJob = JobSnapshot<StoredPayload>;

/// Several processes may begin a snapshot at once. The first `Begin` in the log counts. If its
/// process dies, another one begins after a timeout.
async fn write_snapshot(shared: &LogShared) -> Result<()> {
    let begin = append(shared, SnapshotEntry::Begin, |replica, at| {
        at.begins_snapshot.then(|| (at.offset, replica.snapshot()))
    });
    let Some((begin, (first_parts, jobs))) = begin.await? else { return Ok(()) };
    shared.reached("begun").await;
    let mut written = append_parts(shared, begin, 0, first_parts).await?;
    shared.reached("half").await;
    let payload_bytes = |job: &StoredJob| u64::from(job.stored.payload.length);
    for chunk in chunks(jobs, FETCH_JOBS, FETCH_BYTES, payload_bytes) {
        let stored = chunk.iter().map(|job| (job.job.id, job.stored.payload));
        let payloads = fetch::read(shared, stored, ReadPurpose::View).await?;
        let ids = chunk.iter().map(|job| job.job.id);
        let lost: Vec<JobId> = ids.filter(|id| !payloads.contains_key(id)).collect();
        // Another process may have completed a snapshot, so that the old streams could be deleted.
        // Otherwise the payloads are lost.
        if !lost.is_empty() && directory::locate(shared).await? >= Generation::of(begin) {
            return Ok(());
        }
        lost.into_iter().for_each(|job| shared.state().add_lost_payload(job));
        let parts = job_parts(chunk, |id, _| payloads.get(&id).cloned());
        written = append_parts(shared, begin, written, parts).await?;
    }
    append(shared, SnapshotEntry::End { begin, parts: written }, |_, _| ()).await?;
    shared.reached("complete").await;
    Ok(())
}

/// Returns how many parts the snapshot then has.
async fn append_parts(
    shared: &LogShared,
    begin: u64,
    mut written: u32,
    parts: Vec<SnapshotPart>,
) -> Result<u32> {
    for part in parts {
        let part = SnapshotEntry::Part { begin, number: written, part };
        append(shared, part, |_, _| ()).await?;
        written += 1;
    }
    Ok(written)
}

async fn append<T: Send + 'static>(
    shared: &LogShared,
    entry: SnapshotEntry,
    read: impl FnOnce(&mut Replica, AppliedAt) -> T + Send + 'static,
) -> Result<T> {
    let read = |replica: &mut Replica, (), at| read(replica, at);
    shared.call(OPERATION, LostReply::Unavailable, Command::Snapshot(entry), read).await
}
