//! Leases due jobs as planned by a reader (`claim_plan.rs`).

use std::collections::HashSet;
use std::sync::mpsc;

use dq_core::machine::{Gate, Room};
use dq_core::{
    Claimed, DeadKind, DeadReason, FencingToken, Job, LeasedJob, QueueName, Settlement, Verdict,
    Want,
};
use rusqlite::params;

use crate::claim_plan::{ClaimPlan, ClaimableQueue, earlier};
use crate::error::StoreResult;
use crate::row::{self, Position};
use crate::settle::{mark_dead, settle};
use crate::task::{Access, Task, Weight, WriterMessage};
use crate::write_tx::WriteTx;

/// Entries without a job row that a claim drops per queue. If there are more, the claim reports a
/// due job, and the next claim continues.
const MAX_DROPPED: usize = 1_000;

/// Jobs that a claim parks per queue; see [`MAX_DROPPED`].
const MAX_PARKED: usize = 1_000;

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
        let queue_next_due = if max == 0 {
            Some(*earliest_due)
        } else if tx.is_paused(*queue_id)? {
            // Paused after the plan was made.
            None
        } else {
            lease_in_limits(tx, *queue_id, want, max, worker, &mut claimed)?;
            tx.earliest_due(*queue_id)?
        };
        if let Some(due) = queue_next_due {
            next_due = earlier(next_due, tx.opens_at(*queue_id, due)?);
        }
    }
    let queue_ids: HashSet<i64> = plan.claimable.iter().map(|queue| queue.queue_id).collect();
    let next_expiry = tx.next_expiry(|id| queue_ids.contains(&id))?;
    claimed.next_due = earlier(next_due, next_expiry);
    Ok(claimed)
}

/// Leases up to `max` due jobs of one queue, within its limits.
fn lease_in_limits(
    tx: &mut WriteTx<'_>,
    queue_id: i64,
    want: &Want,
    max: usize,
    worker: &str,
    claimed: &mut Claimed,
) -> StoreResult<()> {
    let Some(mut gate) = tx.gate(queue_id)? else {
        return lease_due(tx, queue_id, want, max, None, worker, claimed);
    };
    let Room::Jobs(room) = tx.room(queue_id, &gate)? else { return Ok(()) };
    let before = claimed.jobs.len();
    let max = gate.allowed(room, max, want.starting);
    let group_gate = gate.flow().group_max_running.is_some().then_some(&gate);
    lease_due(tx, queue_id, want, max, group_gate, worker, claimed)?;
    let started = claimed.jobs.len() - before;
    if started > 0 && gate.flow().rate.is_some() {
        gate.start(started, tx.now);
        tx.save_gate(queue_id, &gate)?;
    }
    Ok(())
}

/// Leases up to `max` due jobs of one queue. Jobs with invalid rows become dead as
/// [`DeadKind::Quarantined`]. Entries without a job row are dropped and do not count. With limits
/// of groups, jobs of full groups are parked, at most [`MAX_PARKED`]. Beyond `want.starting`, the
/// first job with which its group would use more than half of its limit ends the claim.
fn lease_due(
    tx: &mut WriteTx<'_>,
    queue_id: i64,
    want: &Want,
    max: usize,
    group_gate: Option<&Gate>,
    worker: &str,
    claimed: &mut Claimed,
) -> StoreResult<()> {
    let (before, leased_until) = (claimed.jobs.len(), tx.now + want.lease_for);
    let (mut remaining, mut dropped, mut parked) = (max, 0, 0);
    let mut has_quarantined = false;
    let mut ends_claim = false;
    while !ends_claim && remaining > 0 && dropped < MAX_DROPPED && parked < MAX_PARKED {
        let entries = read_due(tx, queue_id, &want.queue, remaining)?;
        let has_more = entries.len() == remaining;
        let mut last = None;
        for ((at, seq), due_job) in entries {
            let previous = last.replace((at, seq));
            let Some((mut job, invalid)) = due_job else {
                dropped += 1;
                continue;
            };
            if let (Some(group), Some(gate)) = (job.group(), group_gate)
                && invalid.is_none()
            {
                let running = tx.running_of_group(queue_id, group)?;
                if gate.group_is_full(running) {
                    tx.park(queue_id, group, at, seq)?;
                    parked += 1;
                    continue;
                }
                ends_claim = claimed.jobs.len() - before >= want.starting
                    && !gate.group_stays_half_free(running);
                if ends_claim {
                    last = previous;
                    break;
                }
            }
            remaining -= 1;
            match invalid {
                None => {
                    let (token, granted) = (tx.next_token(), tx.grant());
                    let until = leased_until.as_millis();
                    tx.execute(
                        &tx.statements.add_lease,
                        params![seq, queue_id, until, token, worker, granted, job.group()],
                    )?;
                    job.deliveries = job.deliveries.saturating_add(1);
                    let token = FencingToken(token.unsigned_abs());
                    claimed.jobs.push(LeasedJob::new(job, token, leased_until));
                }
                Some(message) => {
                    let reason = DeadReason::new(DeadKind::Quarantined, message);
                    mark_dead(tx, seq, &reason, 0, 0)?;
                    claimed.quarantined.push((job, reason));
                    has_quarantined = true;
                }
            }
        }
        if let Some((at, seq)) = last {
            // These entries were the queue's first: one range covers exactly them.
            tx.mark_changed(queue_id);
            tx.execute(&tx.statements.remove_due_until, [queue_id, at, seq])?;
        }
        if !has_more {
            break;
        }
    }
    if group_gate.is_some() && (has_quarantined || dropped > 0) {
        // They may have had the places of parked jobs.
        tx.unpark_all(queue_id)?;
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

/// The job, and the reason why its row is invalid; `None` if its row is missing.
type DueJob = Option<(Job, Option<String>)>;

fn read_due(
    tx: &WriteTx<'_>,
    queue_id: i64,
    queue: &QueueName,
    max: usize,
) -> StoreResult<Vec<(Position, DueJob)>> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    tx.all(&tx.statements.due_jobs, [queue_id, tx.now.as_millis(), max], |row| {
        let job = (!row::is_orphan(row)?).then(|| row::job(row, queue));
        Ok((row::position(row)?, job))
    })
}

/// A committed claim's leases on their way to the caller; released at once if the caller drops its
/// future first.
///
/// Create it only after the commit: a rolled back transaction's tokens are issued again, so
/// returning its leases would end another caller's.
#[derive(Debug)]
pub(crate) struct ClaimGuard {
    pub(crate) claimed: Claimed,
    pub(crate) writer: mpsc::Sender<WriterMessage>,
}

impl ClaimGuard {
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
        let weight = Weight::items(releases.len());
        let work = move |tx: &mut WriteTx<'_>| {
            releases.iter().try_for_each(|release| settle(tx, release).map(drop))
        };
        let (task, _) = Task::new(Access::HeldLeases, weight, None, work, |()| ());
        // Fails only if the store is closed; the leases then expire.
        let _ = self.writer.send(WriterMessage::Task(task));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Poll;

    use bytes::Bytes;
    use dq_core::{Backend, Due, Operation, Renewal, Renewed, Result};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::fixture::{Fixture, LEASE, name, wants};

    async fn fixture() -> Fixture {
        let fixture = Fixture::new().await;
        let _ = fixture.backend.schedule(vec![fixture.job(0, Due::NOW)]).await.unwrap();
        fixture
    }

    async fn plan(fixture: &Fixture) -> ClaimPlan {
        fixture.backend.plan_claim(wants(0..1).into(), 1).await.unwrap()
    }

    /// The claim is in the writer's channel on return.
    async fn send_claim(fixture: &Fixture, plan: ClaimPlan) -> JoinHandle<Result<Claimed>> {
        let backend = Arc::clone(&fixture.backend);
        let claim = tokio::spawn(async move { backend.claim_planned(plan, 1, "test").await });
        // The runtime has one thread: the call runs until it waits for its reply.
        tokio::task::yield_now().await;
        claim
    }

    #[tokio::test]
    async fn a_rolled_back_claim_returns_no_leases_of_other_callers() {
        let fixture = fixture().await;
        let conn = rusqlite::Connection::open(fixture.dir.path().join("jobs.db")).unwrap();
        conn.execute_batch(
            "CREATE TRIGGER reject BEFORE INSERT ON dq_job \
             WHEN CAST(NEW.payload AS TEXT) = 'poison' \
             BEGIN SELECT RAISE(ABORT, 'rejected payload'); END",
        )
        .unwrap();
        let plan = plan(&fixture).await;
        let unblock = fixture.block_writer().await;
        let rolled_back = send_claim(&fixture, plan.clone()).await;
        let poison = fixture.job(0, LEASE).payload(Bytes::from_static(b"poison"));
        let backend = Arc::clone(&fixture.backend);
        let failing = tokio::spawn(async move { backend.schedule(vec![poison]).await });
        tokio::task::yield_now().await;
        // Runs in the transaction after the failed one, which issues the same token again.
        let next = send_claim(&fixture, plan).await;
        drop(unblock);
        failing.await.unwrap().unwrap_err();
        rolled_back.await.unwrap().unwrap_err();
        let held = next.await.unwrap().unwrap().jobs.remove(0);
        assert!(fixture.claim(0..1).await.jobs.is_empty(), "one lease at a time");
        let renewed = fixture.backend.renew(&[Renewal::new(held.lease(), LEASE)]).await.unwrap();
        assert_eq!(renewed, [Renewed::Until(fixture.environment.clock.now() + LEASE)]);
    }

    #[tokio::test]
    async fn a_dropped_claim_returns_its_leases() {
        let fixture = fixture().await;
        let plan = plan(&fixture).await;
        let unblock = fixture.block_writer().await;
        {
            let dropped = fixture.backend.claim_planned(plan, 1, "test");
            tokio::pin!(dropped);
            let poll = std::future::poll_fn(|context| {
                Poll::Ready(dropped.as_mut().poll(context).is_pending())
            });
            assert!(poll.await);
        }
        drop(unblock);
        let again = loop {
            if let Some(job) = fixture.claim(0..1).await.jobs.pop() {
                break job;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!((again.job.deliveries, again.job.losses), (1, 0));
    }

    #[tokio::test]
    async fn a_plan_that_others_were_faster_than_leases_nothing() {
        let fixture = fixture().await;
        let late = plan(&fixture).await;
        assert_eq!(fixture.claim(0..1).await.jobs.len(), 1);
        let late = fixture.backend.claim_planned(late, 1, "test").await.unwrap();
        assert_eq!((late.jobs.len(), late.next_due), (0, Some(late.now + LEASE)));
        let _ = fixture.backend.schedule(vec![fixture.job(0, Due::NOW)]).await.unwrap();
        let plan = plan(&fixture).await;
        fixture.backend.operate(Operation::Pause { queue: &name(0) }).await.unwrap();
        let paused = fixture.backend.claim_planned(plan, 1, "test").await.unwrap();
        assert_eq!(paused.jobs.len(), 0, "the queue was paused after the plan");
    }
}
