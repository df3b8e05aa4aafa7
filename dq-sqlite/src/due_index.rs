//! When each queue's first job is due, in memory: with many queues, a claim then visits only the
//! due ones.
//!
//! The index is exact or unused. The writer applies its own commits to it. Another connection's
//! commit changes the file's data version; a claim that sees a new version reads the file and
//! refills the index.

use std::collections::{BTreeSet, HashMap};

use dq_core::Timestamp;
use rusqlite::Connection;

use crate::connection::data_version;
use crate::error::StoreResult;
use crate::queue_directory::QueueSet;

pub(crate) const MIN_QUEUES: usize = 64;

/// A changed queue and its first due time; `None` if no job waits or the queue is paused.
pub(crate) type NextDue = (i64, Option<Timestamp>);

#[derive(Debug, Default)]
pub(crate) struct DueIndex {
    /// Only for its data version: that changes with every commit, because this connection makes
    /// none.
    watcher: Option<Connection>,
    version: Option<i64>,
    /// With or without waiting jobs.
    covered: QueueSet,
    by_queue: HashMap<i64, Timestamp>,
    by_due: BTreeSet<(Timestamp, i64)>,
}

impl DueIndex {
    /// Returns the file's data version. A claim that then reads the queues can [fill](Self::fill)
    /// the index.
    pub(crate) fn file_version(
        &mut self,
        open: impl FnOnce() -> StoreResult<Connection>,
    ) -> StoreResult<i64> {
        let watcher = match &mut self.watcher {
            Some(watcher) => watcher,
            empty => empty.insert(open()?),
        };
        Ok(data_version(watcher)?)
    }

    /// Visits queues in due order, up to the first one due after `now`. Returns `false` without any
    /// visit if the index is not exact or lacks a queue.
    pub(crate) fn visit(
        &self,
        queues: &QueueSet,
        now: Timestamp,
        mut visit: impl FnMut(i64, Timestamp),
    ) -> bool {
        if self.version.is_none()
            || self.read_version() != self.version
            || !self.covered.contains_all(queues)
        {
            return false;
        }
        for (due, queue_id) in &self.by_due {
            if queues.contains(*queue_id) {
                visit(*queue_id, *due);
                if *due > now {
                    break;
                }
            }
        }
        true
    }

    /// Fills the index with the `waiting` queues among `covered`, read in a transaction begun after
    /// `version`. Does nothing if the file has changed since.
    pub(crate) fn fill(
        &mut self,
        version: i64,
        covered: &QueueSet,
        waiting: impl Iterator<Item = (i64, Timestamp)>,
    ) {
        if self.read_version() == Some(version) {
            self.covered = covered.clone();
            self.by_queue = waiting.collect();
            self.by_due = self.by_queue.iter().map(|(queue_id, due)| (*due, *queue_id)).collect();
            self.version = Some(version);
        }
    }

    /// Applies a commit by the writer, which holds the lock on the index. `others_committed` tells
    /// whether others have committed since the transaction began.
    pub(crate) fn committed(
        &mut self,
        changes: &[NextDue],
        others_committed: impl FnOnce() -> bool,
    ) {
        if self.version.take().is_none() {
            return;
        }
        for (queue_id, due) in changes {
            self.set(*queue_id, *due);
        }
        // In this order, so that commits by others before the version was read are noticed.
        let version = self.read_version();
        if !others_committed() {
            self.version = version;
        }
    }

    pub(crate) fn invalidate(&mut self) {
        self.version = None;
    }

    pub(crate) fn close(&mut self) {
        self.invalidate();
        self.watcher = None;
    }

    fn set(&mut self, queue_id: i64, due: Option<Timestamp>) {
        if let Some(before) = self.by_queue.remove(&queue_id) {
            self.by_due.remove(&(before, queue_id));
        }
        if let Some(due) = due.filter(|_| self.covered.contains(queue_id)) {
            self.by_queue.insert(queue_id, due);
            self.by_due.insert((due, queue_id));
        }
    }

    fn read_version(&self) -> Option<i64> {
        data_version(self.watcher.as_ref()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dq_core::{Backend, JobRef, Operation, QueueName, Settlement, Verdict};
    use rusqlite::StatementStatus;

    use super::*;
    use crate::fixture::{Fixture, name};

    const QUEUES: usize = 2 * MIN_QUEUES;
    const HOUR: Duration = Duration::from_secs(3_600);

    async fn claim_all(fixture: &Fixture) -> (Vec<QueueName>, Option<u64>) {
        let claimed = fixture.claim(0..QUEUES).await;
        let next_due = claimed.next_due.map(|due| due.since(claimed.now).as_secs());
        (claimed.jobs.into_iter().map(|leased| leased.job.queue).collect(), next_due)
    }

    async fn looks(fixture: &Fixture) -> i32 {
        let looks = |tx: crate::reader::ReadTx<'_>| {
            let statement = tx.conn.prepare_cached(&tx.statements.next_waiting)?;
            Ok(statement.get_status(StatementStatus::Run))
        };
        fixture.backend.planners.read("test", looks).await.unwrap()
    }

    #[tokio::test]
    async fn only_the_first_claim_looks_at_each_queue_also_after_own_commits() {
        let fixture = Fixture::new().await;
        let backend = &fixture.backend;
        let jobs = (0..QUEUES).map(|number| fixture.job(number, HOUR)).collect();
        let _ = backend.schedule(jobs).await.unwrap();
        assert_eq!(claim_all(&fixture).await, (vec![], Some(3_600)));
        let first_looks = looks(&fixture).await;
        assert!(first_looks >= QUEUES as i32, "{first_looks}");

        let (due, soon) = (fixture.job(5, Duration::ZERO), fixture.job(6, Duration::from_secs(9)));
        let soon_ref = JobRef::new(name(6), soon.id);
        let _ = backend.schedule(vec![due, soon]).await.unwrap();
        let claimed = fixture.claim(0..QUEUES).await;
        assert_eq!(claimed.jobs[0].job.queue, name(5));
        assert_eq!(claimed.next_due, Some(claimed.now + Duration::from_secs(9)));
        let snooze = Verdict::Snooze(Duration::from_secs(3).into());
        let settlement = Settlement::new(claimed.jobs[0].lease(), snooze);
        let _ = backend.settle(&[settlement]).await.unwrap();
        assert_eq!(claim_all(&fixture).await, (vec![], Some(3)));
        let _ = backend.operate(Operation::Pause { queue: &name(5) }).await.unwrap();
        assert_eq!(claim_all(&fixture).await, (vec![], Some(9)));
        let _ = backend.cancel(&[soon_ref]).await.unwrap();
        assert_eq!(claim_all(&fixture).await.1, Some(3_600));
        let _ = backend.operate(Operation::Resume { queue: &name(5) }).await.unwrap();
        assert_eq!(claim_all(&fixture).await, (vec![], Some(3)));
        let subset = fixture.claim(QUEUES - MIN_QUEUES..QUEUES).await;
        assert_eq!(subset.next_due, Some(subset.now + HOUR), "queue 5 is not wanted");
        assert_eq!(looks(&fixture).await, first_looks);
    }
}
