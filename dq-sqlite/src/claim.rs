//! Leases due jobs as planned by a reader (`claim_plan.rs`).

use std::collections::HashSet;

use dq_core::{
    Claimed, DeadKind, DeadReason, FencingToken, Job, LeasedJob, QueueName, Settlement, Verdict,
    Want,
};
use rusqlite::params;

use crate::claim_plan::{ClaimPlan, ClaimableQueue, earlier};
use crate::error::StoreResult;
use crate::row;
use crate::settle::{move_to_dead, settle};
use crate::task::{BackgroundWrites, Weight};
use crate::write_tx::WriteTx;

/// Entries without a job row that a claim drops per queue. If there are more, the claim reports a
/// due job, and the next claim continues.
const MAX_DROPPED: usize = 1_000;

/// Leases up to `limit` due jobs in the planned queues.
///
/// For queues without due jobs, `next_due` comes from the plan. If another caller has since added a
/// job, listeners hear of it.
pub(crate) fn claim(
    tx: &mut WriteTx<'_>,
    plan: &ClaimPlan,
    limit: usize,
    worker: &str,
) -> StoreResult<Claimed> {
    let mut claimed = Claimed::new(Vec::new(), None, tx.now);
    let mut next_due = plan.next_due;
    for ClaimableQueue { want, queue_id, earliest_due } in &plan.claimable {
        let max = want.max.min(limit - claimed.jobs.len());
        let first = if max == 0 {
            Some(*earliest_due)
        } else if tx.reading().is_paused(*queue_id)? {
            // Paused after the plan was made.
            None
        } else {
            lease_due(tx, *queue_id, want, max, worker, &mut claimed)?;
            tx.earliest_due(*queue_id)?
        };
        next_due = earlier(next_due, first);
    }
    let queue_ids: HashSet<i64> = plan.claimable.iter().map(|queue| queue.queue_id).collect();
    let next_lapse = tx.reading().next_lapse(|id| queue_ids.contains(&id))?;
    claimed.next_due = earlier(next_due, next_lapse);
    Ok(claimed)
}

/// Leases up to `max` due jobs of one queue. Jobs with invalid rows become dead as
/// [`DeadKind::Quarantined`]. Entries without a job row are dropped and do not count.
fn lease_due(
    tx: &mut WriteTx<'_>,
    queue_id: i64,
    want: &Want,
    max: usize,
    worker: &str,
    claimed: &mut Claimed,
) -> StoreResult<()> {
    let leased_until = tx.now + want.lease_for;
    let (mut remaining, mut dropped) = (max, 0);
    while remaining > 0 && dropped < MAX_DROPPED {
        let due = read_due(tx, queue_id, &want.queue, remaining)?;
        let Some((seq, at, _)) = due.last() else {
            break;
        };
        // These entries are the queue's first: one range covers exactly them.
        tx.mark_changed(queue_id);
        tx.prepare(&tx.statements.remove_due_until)?.execute([queue_id, *at, *seq])?;
        let is_last = due.len() < remaining;
        for (seq, _, entry) in due {
            match entry {
                DueEntry::Job(mut job) => {
                    remaining -= 1;
                    let (token, granted) = (tx.next_token(), tx.grant());
                    let until = leased_until.as_millis();
                    tx.prepare(&tx.statements.add_lease)?
                        .execute(params![seq, queue_id, until, token, worker, granted])?;
                    job.deliveries = job.deliveries.saturating_add(1);
                    let token = FencingToken(token.unsigned_abs());
                    claimed.jobs.push(LeasedJob::new(job, token, leased_until));
                }
                DueEntry::Invalid(job, message) => {
                    remaining -= 1;
                    let reason = DeadReason::new(DeadKind::Quarantined, message);
                    move_to_dead(tx, seq, &reason, 0, 0)?;
                    claimed.quarantined.push((job, reason));
                }
                DueEntry::Orphan => dropped += 1,
            }
        }
        if is_last {
            break;
        }
    }
    if dropped > 0 {
        tracing::warn!(
            queue = %want.queue,
            entries = dropped,
            "dropped waiting entries whose jobs another program has deleted"
        );
    }
    Ok(())
}

enum DueEntry {
    Job(Job),
    /// Unreadable fields have default values.
    Invalid(Job, String),
    Orphan,
}

fn read_due(
    tx: &WriteTx<'_>,
    queue_id: i64,
    queue: &QueueName,
    max: usize,
) -> StoreResult<Vec<(i64, i64, DueEntry)>> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let mut statement = tx.prepare(&tx.statements.due_jobs)?;
    let due = statement
        .query_map([queue_id, tx.now.as_millis(), max], |row| {
            let (seq, at) = row::position(row)?;
            let entry = match row::job(row, queue) {
                _ if row::is_orphan(row)? => DueEntry::Orphan,
                Ok(job) => DueEntry::Job(job),
                Err(reason) => DueEntry::Invalid(row::job_or_defaults(row, queue), reason),
            };
            Ok((seq, at, entry))
        })?
        .collect::<rusqlite::Result<_>>()?;
    Ok(due)
}

/// A committed claim's leases on their way to the caller; released at once if the caller drops its
/// future first.
///
/// Create it only after the commit: a rolled back transaction's tokens are issued again, so
/// returning its leases would end another caller's.
#[derive(Debug)]
pub(crate) struct ClaimGuard {
    claimed: Claimed,
    background_writes: BackgroundWrites,
}

impl ClaimGuard {
    pub(crate) const fn new(claimed: Claimed, background_writes: BackgroundWrites) -> Self {
        Self { claimed, background_writes }
    }

    pub(crate) fn into_claimed(mut self) -> Claimed {
        let Claimed { next_due, now, .. } = self.claimed;
        let empty = Claimed::new(Vec::new(), next_due, now);
        std::mem::replace(&mut self.claimed, empty)
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        if self.claimed.jobs.is_empty() {
            return;
        }
        let release = Verdict::Release { started: false };
        let releases: Vec<Settlement> = self
            .claimed
            .jobs
            .iter()
            .map(|job| Settlement::new(job.lease(), release.clone()))
            .collect();
        self.background_writes.send(Weight::items(releases.len()), move |tx| {
            releases.iter().try_for_each(|release| settle(tx, release).map(drop))
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::task::Poll;
    use std::time::Duration;

    use bytes::Bytes;
    use dq_core::config::Environment;
    use dq_core::{
        Backend, ClaimParams, Due, Entropy, NewJob, QueueName, Renewal, Renewed, Result,
        VirtualClock, Want,
    };
    use tempfile::TempDir;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::task::Access;
    use crate::{SqliteBackend, SqliteConfig};

    const MINUTE: Duration = Duration::from_secs(60);

    struct Fixture {
        backend: Arc<SqliteBackend>,
        environment: Environment,
        dir: TempDir,
    }

    impl Fixture {
        async fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let clock = Arc::new(VirtualClock::default());
            let environment = Environment::new(clock, Arc::new(Entropy::seeded(7)));
            let config = SqliteConfig::new(dir.path().join("jobs.db"));
            let backend = Arc::new(SqliteBackend::open(&config, &environment).await.unwrap());
            let fixture = Self { backend, environment, dir };
            let _ = fixture.backend.schedule(vec![fixture.job("{}", Due::NOW)]).await.unwrap();
            fixture
        }

        fn job(&self, payload: &'static str, due: impl Into<Due>) -> NewJob {
            let id = self.environment.entropy.job_id(self.environment.clock.now());
            NewJob::new(id, queue(), due, Bytes::from_static(payload.as_bytes()))
        }

        async fn plan(&self) -> ClaimPlan {
            self.backend.plan_claim(wants().into(), 1).await.unwrap()
        }

        /// Blocks the writer in a transaction until the returned sender sends or is dropped.
        async fn block_writer(&self) -> mpsc::Sender<()> {
            let (unblock, blocked) = mpsc::channel();
            let (entered, entering) = mpsc::channel();
            let backend = Arc::clone(&self.backend);
            tokio::spawn(async move {
                let wait = move |_: &mut WriteTx<'_>| {
                    entered.send(()).unwrap();
                    let _ = blocked.recv();
                    Ok(())
                };
                backend.writer.submit("test", Access::Write, Weight::ONE, wait).await.unwrap();
            });
            tokio::task::yield_now().await;
            entering.recv().unwrap();
            unblock
        }

        /// The claim is in the writer's channel on return.
        async fn send_claim(&self, plan: ClaimPlan) -> JoinHandle<Result<Claimed>> {
            let backend = Arc::clone(&self.backend);
            let claim = tokio::spawn(async move { backend.claim_planned(plan, 1, "test").await });
            // The runtime has one thread: the call runs until it waits for its reply.
            tokio::task::yield_now().await;
            claim
        }

        async fn claim(&self) -> Claimed {
            let wants = wants();
            let params = ClaimParams::new(&wants, 1, "test");
            self.backend.claim(params).await.unwrap()
        }
    }

    fn queue() -> QueueName {
        QueueName::new("mail").unwrap()
    }

    fn wants() -> Vec<Want> {
        vec![Want::new(queue(), 1, MINUTE)]
    }

    #[tokio::test]
    async fn a_rolled_back_claim_returns_no_leases_of_other_callers() {
        let fixture = Fixture::new().await;
        let conn = rusqlite::Connection::open(fixture.dir.path().join("jobs.db")).unwrap();
        conn.execute_batch(
            "CREATE TRIGGER reject BEFORE INSERT ON dq_job \
             WHEN CAST(NEW.payload AS TEXT) = 'poison' \
             BEGIN SELECT RAISE(ABORT, 'rejected payload'); END",
        )
        .unwrap();
        let plan = fixture.plan().await;
        let unblock = fixture.block_writer().await;
        let rolled_back = fixture.send_claim(plan.clone()).await;
        let (backend, poison) = (Arc::clone(&fixture.backend), fixture.job("poison", MINUTE));
        let failing = tokio::spawn(async move { backend.schedule(vec![poison]).await });
        tokio::task::yield_now().await;
        // Runs in the transaction after the failed one, which issues the same token again.
        let next = fixture.send_claim(plan).await;
        drop(unblock);
        failing.await.unwrap().unwrap_err();
        rolled_back.await.unwrap().unwrap_err();
        let held = next.await.unwrap().unwrap().jobs.remove(0);
        assert!(fixture.claim().await.jobs.is_empty(), "one lease at a time");
        let renewal = Renewal::new(held.lease(), MINUTE);
        let renewed = fixture.backend.renew(&[renewal]).await.unwrap();
        assert_eq!(renewed, [Renewed::Until(fixture.environment.clock.now() + MINUTE)]);
    }

    #[tokio::test]
    async fn a_dropped_claim_returns_its_leases() {
        let fixture = Fixture::new().await;
        let plan = fixture.plan().await;
        let unblock = fixture.block_writer().await;
        {
            let dropped = fixture.backend.claim_planned(plan, 1, "test");
            tokio::pin!(dropped);
            // One poll puts the claim into the writer's channel; then it is dropped.
            let poll = std::future::poll_fn(|context| {
                Poll::Ready(dropped.as_mut().poll(context).is_pending())
            });
            assert!(poll.await);
        }
        drop(unblock);
        // The release runs in its own transaction, after the claim's.
        let again = loop {
            if let Some(job) = fixture.claim().await.jobs.pop() {
                break job;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!((again.job.deliveries, again.job.losses), (1, 0));
    }

    #[tokio::test]
    async fn a_plan_that_others_were_faster_than_leases_nothing() {
        let fixture = Fixture::new().await;
        let plan = fixture.plan().await;
        assert_eq!(fixture.claim().await.jobs.len(), 1);
        let late = fixture.backend.claim_planned(plan.clone(), 1, "test").await.unwrap();
        assert_eq!((late.jobs.len(), late.next_due), (0, Some(late.now + MINUTE)));
        let _ = fixture.backend.schedule(vec![fixture.job("{}", Due::NOW)]).await.unwrap();
        let plan = fixture.plan().await;
        let queue = queue();
        fixture.backend.operate(dq_core::Operation::Pause { queue: &queue }).await.unwrap();
        let paused = fixture.backend.claim_planned(plan, 1, "test").await.unwrap();
        assert_eq!(paused.jobs.len(), 0, "the queue was paused after the plan");
    }
}
