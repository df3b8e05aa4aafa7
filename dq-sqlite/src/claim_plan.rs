//! A reader's plan for a claim: which queues have due jobs, and when the others do. Without due
//! jobs the claim takes no write lock; otherwise the writer visits only queues with due jobs.

use std::sync::Mutex;

use dq_core::sync::lock;
use dq_core::{Timestamp, Want};

use crate::due_index::DueIndex;
use crate::error::StoreResult;
use crate::queue_directory::QueueSet;
use crate::reader::ReadTx;
use crate::schema;

#[derive(Debug, Clone)]
pub(crate) struct ClaimPlan {
    pub(crate) claimable: Vec<ClaimableQueue>,
    /// In the other wanted queues; or when a wanted queue's lease expires.
    pub(crate) next_due: Option<Timestamp>,
    pub(crate) now: Timestamp,
    /// The clock was set back since the last lease grant: a write transaction must shorten leases,
    /// and the plan must be made again.
    pub(crate) clock_was_set_back: bool,
}

/// Another caller may take the due job before the writer does.
#[derive(Debug, Clone)]
pub(crate) struct ClaimableQueue {
    pub(crate) want: Want,
    pub(crate) queue_id: i64,
    pub(crate) earliest_due: Timestamp,
}

/// The queue's id, and when its first waiting job is due.
type FirstJob = (i64, Timestamp);

impl ReadTx<'_> {
    /// With many queues, the caller passes the file version from before the transaction, and only
    /// queues with due jobs cost time; otherwise all queues with jobs do.
    pub(crate) fn plan_claim(
        self,
        queues: &QueueSet,
        wants: &[Want],
        limit: usize,
        index: Option<(&Mutex<DueIndex>, i64)>,
    ) -> StoreResult<ClaimPlan> {
        let (min_writer, granted): (i64, i64) =
            self.one(&self.statements.claim_limits, [], |row| row.try_into())?;
        schema::check_writer(min_writer)?;
        let first_jobs = self.first_jobs(queues, wants.len(), index)?;
        let mut claimable = Vec::new();
        let mut next_due = self.next_expiry(|queue_id| queues.contains(queue_id))?;
        for (want, first_job) in wants.iter().zip(first_jobs) {
            let Some((queue_id, due)) = first_job else {
                continue;
            };
            let wants_now = due <= self.now && want.max > 0 && limit > 0;
            if wants_now && self.has_room(queue_id)? {
                let want = want.clone();
                claimable.push(ClaimableQueue { want, queue_id, earliest_due: due });
            } else {
                next_due = earlier(next_due, self.opens_at(queue_id, due)?);
            }
        }
        let clock_was_set_back = granted > self.now.as_millis();
        Ok(ClaimPlan { claimable, next_due, now: self.now, clock_was_set_back })
    }

    /// First waiting jobs in active queues, by want index: all due ones, and at least the next one.
    /// A job with an expired lease waits.
    fn first_jobs(
        self,
        queues: &QueueSet,
        count: usize,
        index: Option<(&Mutex<DueIndex>, i64)>,
    ) -> StoreResult<Vec<Option<FirstJob>>> {
        let mut first_jobs = vec![None; count];
        // The index may be newer than the transaction: a job leased in between is then missing,
        // with its lease end; the next claim sees it.
        let is_indexed = index.is_some_and(|(index, _)| {
            lock(index).visit(queues, self.now, |queue_id, due| {
                for position in queues.positions(queue_id) {
                    first_jobs[position] = Some((queue_id, due));
                }
            })
        });
        if !is_indexed {
            queues.for_each_waiting(self.conn, self.statements, |position, queue_id, due| {
                first_jobs[position] = Some((queue_id, due));
            })?;
            if let Some((index, version)) = index {
                lock(index).fill(version, queues, first_jobs.iter().flatten().copied());
            }
        }
        for (queue_id, due) in self.expired_jobs()? {
            let due = Timestamp::from_millis(due);
            if !queues.contains(queue_id) || self.is_paused(queue_id)? {
                continue;
            }
            for position in queues.positions(queue_id) {
                let first_job: &mut Option<FirstJob> = &mut first_jobs[position];
                if first_job.is_none_or(|(_, first)| due < first) {
                    *first_job = Some((queue_id, due));
                }
            }
        }
        Ok(first_jobs)
    }

    /// Returns when the next lease of a wanted queue that is not paused expires. Reads leases in
    /// expiry order up to the first match; there are only as many as running handlers.
    pub(crate) fn next_expiry(
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

    pub(crate) fn earliest_due(self, queue_id: i64) -> StoreResult<Option<Timestamp>> {
        let at = self.find(&self.statements.earliest_due, [queue_id], |row| row.get(0))?;
        Ok(at.map(Timestamp::from_millis))
    }

    pub(crate) fn expired_jobs(self) -> StoreResult<Vec<(i64, i64)>> {
        self.all(&self.statements.expired_jobs, [self.now.as_millis()], |row| row.try_into())
    }

    pub(crate) fn is_paused(self, queue_id: i64) -> StoreResult<bool> {
        self.exists(&self.statements.is_paused, [queue_id])
    }
}

pub(crate) fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.into_iter().chain(b).min()
}
