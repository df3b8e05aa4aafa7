//! The plan of a claim, made by a reader: which queues have due jobs, and when a job is due in the
//! others. If none has, the claim ends with the plan and takes no write lock; otherwise the writer
//! visits only the queues that have due jobs.

use std::sync::Mutex;

use dq_core::sync::lock;
use dq_core::{Timestamp, Want};

use crate::due_index::{DueIndex, FileState};
use crate::error::StoreResult;
use crate::queue_directory::QueueSet;
use crate::reader::ReadTx;
use crate::schema;

/// What a claim is to do.
#[derive(Debug, Clone)]
pub(crate) struct ClaimPlan {
    /// In the order of the wants.
    pub(crate) claimable: Vec<ClaimableQueue>,
    /// When a job of the other wanted queues is due, or a lease of a wanted queue ends.
    pub(crate) next_due: Option<Timestamp>,
    pub(crate) now: Timestamp,
    /// Whether the clock was set back since the last grant of a lease. Then a write transaction is
    /// to shorten leases, and the plan to be made again.
    pub(crate) clock_was_set_back: bool,
}

/// A wanted queue with a job that is due. Another caller may take it before the writer does.
#[derive(Debug, Clone)]
pub(crate) struct ClaimableQueue {
    pub(crate) want: Want,
    pub(crate) queue_id: i64,
    /// When its first job is due, or was.
    pub(crate) earliest_due: Timestamp,
}

/// When the first job of a wanted queue is due.
#[derive(Debug, Clone, Copy)]
struct FirstJob {
    queue_id: i64,
    due: Timestamp,
}

impl ReadTx<'_> {
    /// Plans a claim of up to `limit` jobs. `queues` are those of the wants. If they are many, there is
    /// the state of the file before the transaction, and only those that have due jobs cost time;
    /// otherwise those that have jobs.
    pub(crate) fn plan_claim(
        self,
        queues: &QueueSet,
        wants: &[Want],
        limit: usize,
        index: Option<(&Mutex<DueIndex>, FileState)>,
    ) -> StoreResult<ClaimPlan> {
        let (min_writer, granted): (i64, i64) = self
            .conn
            .prepare_cached(&self.statements.claim_limits)?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        schema::check_writer(min_writer)?;
        let first_jobs = self.first_jobs(queues, wants.len(), index)?;
        let mut claimable = Vec::new();
        let mut next_due = self.next_lapse(|queue_id| queues.contains(queue_id))?;
        for (want, first_job) in wants.iter().zip(first_jobs) {
            let Some(FirstJob { queue_id, due }) = first_job else {
                continue;
            };
            if due <= self.now && want.max > 0 && limit > 0 {
                let want = want.clone();
                claimable.push(ClaimableQueue { want, queue_id, earliest_due: due });
            } else {
                next_due = earlier(next_due, Some(due));
            }
        }
        let clock_was_set_back = granted > self.now.as_millis();
        Ok(ClaimPlan { claimable, next_due, now: self.now, clock_was_set_back })
    }

    /// The first waiting jobs of queues that are not paused, by their place among the wants: of all that
    /// are due, and of the next one at least. A job whose lease has lapsed waits.
    fn first_jobs(
        self,
        queues: &QueueSet,
        count: usize,
        index: Option<(&Mutex<DueIndex>, FileState)>,
    ) -> StoreResult<Vec<Option<FirstJob>>> {
        let mut first_jobs = vec![None; count];
        // The index may be newer than the transaction. A job that another claim has leased in between is
        // then missing, and so is the end of its lease; the next claim sees it.
        let is_indexed = index.is_some_and(|(index, _)| {
            lock(index).visit(queues, self.now, |queue_id, due| {
                for place in queues.places(queue_id) {
                    first_jobs[place] = Some(FirstJob { queue_id, due });
                }
            })
        });
        if !is_indexed {
            queues.for_each_waiting(self.conn, self.statements, |place, queue_id, due| {
                first_jobs[place] = Some(FirstJob { queue_id, due });
            })?;
            if let Some((index, state)) = index {
                let waiting = first_jobs.iter().flatten().map(|first| (first.queue_id, first.due));
                lock(index).fill(state, queues, waiting);
            }
        }
        let mut lapsed = self.conn.prepare_cached(&self.statements.lapsed_jobs)?;
        let mut rows = lapsed.query([self.now.as_millis()])?;
        while let Some(row) = rows.next()? {
            let (queue_id, due) = (row.get(0)?, Timestamp::from_millis(row.get(1)?));
            if !queues.contains(queue_id) || self.is_paused(queue_id)? {
                continue;
            }
            for place in queues.places(queue_id) {
                let first_job: &mut Option<FirstJob> = &mut first_jobs[place];
                if first_job.is_none_or(|first| due < first.due) {
                    *first_job = Some(FirstJob { queue_id, due });
                }
            }
        }
        Ok(first_jobs)
    }

    /// When the next lease of the wanted queues lapses; those of paused queues do not count. Reads
    /// the leases in the order of their ends up to the first match; there are only as many as
    /// running handlers.
    pub(crate) fn next_lapse(
        self,
        is_wanted: impl Fn(i64) -> bool,
    ) -> StoreResult<Option<Timestamp>> {
        let mut statement = self.conn.prepare_cached(&self.statements.lease_ends)?;
        let mut rows = statement.query([self.now.as_millis()])?;
        while let Some(row) = rows.next()? {
            let queue_id = row.get(1)?;
            if is_wanted(queue_id) && !self.is_paused(queue_id)? {
                return Ok(Some(Timestamp::from_millis(row.get(0)?)));
            }
        }
        Ok(None)
    }

    pub(crate) fn is_paused(self, queue_id: i64) -> StoreResult<bool> {
        let mut paused = self.conn.prepare_cached(&self.statements.is_paused)?;
        Ok(paused.exists([queue_id])?)
    }
}

pub(crate) fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.into_iter().chain(b).min()
}
