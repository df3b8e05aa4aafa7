//! Writes snapshots when they are due, so that the broker can delete the beginning of the log.

use std::collections::HashMap;
use std::sync::Arc;

use dq_core::Result;
use futures_util::FutureExt;

use super::command::Snapshot;
use super::fetch::fetch;
use super::pending::AppliedAt;
use super::position::LogPosition;
use super::replica::Replica;
use super::shared::LogShared;
use super::snapshot::job_parts;
use super::wire::SnapshotPart;
use crate::error::LostReply;

/// Number of jobs whose payloads are fetched at once.
const FETCH_JOBS: usize = 5_000;

/// Writes a snapshot on each signal, until it is dropped.
///
/// Several processes may begin a snapshot at once. The one whose `Begin` is first in the log goes
/// on, and the others give up. If it dies, another process begins a snapshot after a timeout.
pub(super) async fn run(shared: Arc<LogShared>) {
    loop {
        shared.snapshot_due.notified().await;
        if let Err(error) = write_snapshot(&shared).await {
            tracing::warn!(%error, "the log could not be compacted; it will be tried again");
        }
        // A signal from before the end of this snapshot is obsolete.
        let _ = shared.snapshot_due.notified().now_or_never();
    }
}

/// Writes a snapshot, unless another process has begun one.
async fn write_snapshot(shared: &LogShared) -> Result<()> {
    let begin = append(shared, SnapshotPart::Begin, |replica, at| {
        at.begins_snapshot.then(|| (at.offset, replica.snapshot(at.offset)))
    });
    let Some((begin, (header, jobs))) = begin.await? else { return Ok(()) };
    append(shared, header, |_, _| ()).await?;
    let mut jobs = jobs.into_iter();
    let mut written = 0;
    loop {
        let chunk: Vec<_> = jobs.by_ref().take(FETCH_JOBS).collect();
        if chunk.is_empty() {
            break;
        }
        let positions = chunk.iter().map(|job| LogPosition::of(&job.job)).collect();
        let fetched = fetch(shared, positions).await?;
        let mut payloads = HashMap::with_capacity(chunk.len());
        for job in &chunk {
            // A job whose payload is lost is kept with an empty one, so that the snapshot succeeds.
            let payload = fetched.get(&LogPosition::of(&job.job)).cloned().unwrap_or_else(|| {
                tracing::error!(id = %job.job.id, "the payload of a job is not in the log");
                Default::default()
            });
            payloads.insert(job.job.id, payload);
        }
        written += payloads.len() as u64;
        for part in job_parts(begin, chunk, payloads) {
            append(shared, part, |_, _| ()).await?;
        }
    }
    append(shared, SnapshotPart::End { begin, jobs: written }, |_, _| ()).await
}

/// Appends a part and waits until it has been read back.
async fn append<T: Send + 'static>(
    shared: &LogShared,
    part: SnapshotPart,
    read: impl FnOnce(&mut Replica, AppliedAt) -> T + Send + 'static,
) -> Result<T> {
    let read = |replica: &mut Replica, (), at| read(replica, at);
    shared.call("compact the log", LostReply::Unavailable, Snapshot(part), read).await
}
