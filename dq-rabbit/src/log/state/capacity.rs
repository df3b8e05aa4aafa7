//! The log's capacity: a snapshot's maximum size. All replicas refuse the same jobs, because the
//! log holds the limit, and each knows its snapshot's size to the byte.

use dq_core::machine::{JobNotes, JobPlacement, Sizes};
use dq_core::{Announced, Job, JobView, Receipt, Settlement, Timestamp, Verdict};

use super::stored::ReplicaMachine;
use crate::log::wire::{self, encoded_size};

// Part of the log's format, because replicas use both while they apply entries.

/// A stored job may grow by this much besides its payload: counts, lease, worker, and an error with
/// [`SHORT_TEXT`] bytes.
pub(super) const RESERVED_PER_JOB: u64 = 256;
/// The longest error or reason while the log is full, in bytes.
const SHORT_TEXT: usize = 120;

/// Field by field as in [`wire`].
pub(in crate::log) const SIZES: Sizes = Sizes { job, ended, pin, runner };

/// A [`wire::SnapshotJob`] without payload and headers.
fn job(job: &Job, seq: u64, placement: &JobPlacement, notes: Option<&JobNotes>) -> u64 {
    let state = match placement {
        JobPlacement::Waiting => 0,
        JobPlacement::Leased { token, until } => encoded_size(&(token.0, until)),
        JobPlacement::Dead(reason, since) => encoded_size(&(&**reason, since)),
    };
    let notes = notes.map_or(0, |notes| {
        let remember = wire::millis(notes.remember);
        let JobNotes { last_error, worker, leased_since, .. } = notes;
        encoded_size(&(last_error, worker.as_deref(), leased_since, remember))
    });
    fields(job) + encoded_size(&seq) + (1 + state) + (1 + notes)
}

fn ended(seq: u64, view: &JobView) -> u64 {
    let JobView { job, leased_since, worker, last_error, ended, .. } = view;
    let Some(ended) = ended else { return 0 };
    let notes = (leased_since, worker, last_error);
    fields(job) + encoded_size(&(seq, notes, ended.ending, &ended.reason, ended.at))
}

fn fields(job: &Job) -> u64 {
    let key = job.key.as_ref().map(|key| key.as_str());
    let first_due = wire::other_first_due(job);
    let counts = [job.attempts, job.deliveries, job.losses];
    let times = (job.due, first_due, job.created);
    encoded_size(&(job.id, job.queue.as_str(), key, times, job.max_attempts, counts))
}

fn pin(receipt: &Receipt, until: Timestamp) -> u64 {
    encoded_size(&(receipt.id, receipt.due, until))
}

fn runner(runner: &Announced) -> u64 {
    encoded_size(&(&runner.name, &runner.info, runner.at, runner.until))
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// A snapshot's bytes, with [`RESERVED_PER_JOB`].
    pub(crate) used: u64,
    /// `None` before the log has a limit.
    pub(crate) capacity: Option<u64>,
}

impl Usage {
    pub(crate) fn percent(self) -> u64 {
        self.capacity.map_or(0, |capacity| self.used.saturating_mul(100) / capacity.max(1))
    }

    fn is_full(self) -> bool {
        self.capacity.is_some_and(|capacity| self.used >= capacity)
    }

    /// Whether the jobs fit. One with a known id adds nothing, and one with a known key adds the
    /// difference.
    pub(in crate::log) fn has_room<'a>(
        self,
        machine: &ReplicaMachine,
        jobs: impl IntoIterator<Item = &'a wire::NewJob>,
    ) -> bool {
        let Some(capacity) = self.capacity else { return true };
        let added = |job: &wire::NewJob| {
            if machine.peek(job.id).is_some() {
                return 0;
            }
            let same_key = job.key().and_then(|key| machine.stored_bytes_of_key(&job.queue, key));
            let new = job.stored_bytes() + RESERVED_PER_JOB;
            new.saturating_sub(same_key.map_or(0, |bytes| bytes + RESERVED_PER_JOB))
        };
        let added: u64 = jobs.into_iter().map(added).sum();
        added == 0 || self.used + added <= capacity
    }

    /// Shortens texts while the log is full, because settlements always pass.
    pub(in crate::log) fn shorten(self, mut settlement: Settlement) -> Settlement {
        if self.is_full() {
            match &mut settlement.verdict {
                Verdict::Skip { reason: text } | Verdict::Retry { error: text, .. } => cut(text),
                Verdict::Dead { reason, .. } => cut(&mut reason.message),
                _ => {}
            }
        }
        settlement
    }
}

fn cut(text: &mut String) {
    let end = (0..=SHORT_TEXT.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
}
