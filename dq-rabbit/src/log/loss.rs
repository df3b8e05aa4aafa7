//! Reports acknowledged entries that the broker has lost.
//!
//! If a stream is deleted or a single node loses power, a cancelled job is back, or a scheduled one
//! is missing. A replica cannot be written back, because the payloads were in the stream. So each
//! replay compares its entries with earlier ones, and stores a dead job that every process finds
//! until an operator removes it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dq_core::sync::lock;
use dq_core::{Due, Error, ErrorKind, JobId, NewJob, QueueName, Result};
use xxhash_rust::xxh3::xxh3_128;

use super::read_before::Loss;
use super::shared::{LogShared, LogState};
use super::wire::Command;
use crate::error::LostReply;

/// The queue for dead jobs that report losses.
pub(crate) const LOSSES: &str = "log-losses";

pub(crate) const REMEDY: &str = "compare the jobs with the records of your applications, and remove the \
     dead jobs of the queue `log-losses` once you have seen them. Find out who deletes streams, or why \
     the broker loses them: a single node may lose its last moments with its power";

const OPERATION: &str = "read the log";

/// The log may be full.
const MIN_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Looks for a loss after a replay, and reports it until the log has taken the report.
pub(super) async fn report(shared: &Arc<LogShared>) {
    let mut pause = MIN_PAUSE;
    let mut is_told = false;
    while let Err(error) = try_report(shared, &mut is_told).await {
        if shared.failure(OPERATION).is_some() {
            return;
        }
        tracing::debug!(%error, "a loss of the log is not reported yet");
        shared.clock.sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

async fn try_report(shared: &LogShared, is_told: &mut bool) -> Result<()> {
    let replay = shared.state().read_before.replays();
    // After this, the whole log was read.
    shared.call(OPERATION, LostReply::Unavailable, Command::Barrier, |_, (), _| ()).await?;
    let found = {
        let mut state = shared.state();
        let LogState { read_before, replica, .. } = &mut *state;
        read_before.compare(replay, replica.producers())
    };
    let Some(Loss { generation, entries }) = found else { return Ok(()) };
    let stream = shared.topology.names().generation(generation);
    let what = match entries {
        0 => format!("the broker has lost the stream {stream}, and all that was written into it"),
        _ => format!("the broker has lost {entries} acknowledged entries of the stream {stream}"),
    };
    let what = format!(
        "{what}: jobs that were scheduled, moved, cancelled or done may be missing or run again"
    );
    if !std::mem::replace(is_told, true) {
        tracing::error!(%stream, entries, "{what}");
        let error = Error::new(ErrorKind::Internal, what.clone()).remedy(REMEDY).operation("claim");
        *lock(&shared.untold_loss) = Some(error);
    }
    // All processes use the same id, so the log keeps one job.
    let id = JobId::from_bytes(xxh3_128(stream.as_str().as_bytes()).to_be_bytes());
    let queue = QueueName::new(LOSSES).expect("a valid name");
    let note = NewJob::new(id, queue, Due::NOW, Bytes::new());
    let park = Command::Park(vec![(note.into(), what)]);
    shared.call(OPERATION, LostReply::Unavailable, park, |_, (), _| ()).await?;
    shared.state().read_before.forget(replay);
    Ok(())
}
