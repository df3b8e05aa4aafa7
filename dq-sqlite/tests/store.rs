//! Job states and transitions, as the tables store them.

mod common;

use std::time::Duration;

use common::{Fixture, MINUTE, WriteLock, assert_kind, claim, dead_ids, queue, settle, stats};
use dq_core::{
    Backend, BrowseParams, Cancelled, DeadKind, DeadReason, Due, ErrorKind, Headers, JobRef,
    JobState, NewJob, OnConflict, Operation, Renewal, Renewed, Reschedule, Rescheduled, Scheduled,
    Settled, Settlement, Verdict,
};
use dq_sqlite::SqliteBackend;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_job_can_be_retried_die_and_be_replayed() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let mut new = fixture.keyed("order-1", SECOND);
    new.headers = Headers::from_iter([("content-type", "text/plain")]);
    new.max_attempts = Some(9);
    assert!(backend.schedule(vec![new.clone()]).await.unwrap()[0].is_stored());
    let early = claim(&backend, 1).await;
    assert!(early.jobs.is_empty());
    assert_eq!(early.next_due, Some(early.now + SECOND));

    fixture.clock.advance(SECOND);
    let first = claim(&backend, 1).await.jobs.remove(0);
    assert_eq!((first.job.id, first.job.deliveries, first.job.attempts), (new.id, 1, 0));
    assert_eq!((&first.job.headers, first.job.max_attempts), (&new.headers, Some(9)));
    settle(&backend, &first, Verdict::retry(Due::After(SECOND), "a reason")).await;

    fixture.clock.advance(SECOND);
    let second = claim(&backend, 1).await.jobs.remove(0);
    assert_eq!((second.job.deliveries, second.job.attempts), (2, 1));
    assert!(second.token > first.token);
    let reason = DeadReason::new(DeadKind::Rejected, "no such order");
    settle(&backend, &second, Verdict::Dead { reason: reason.clone(), failed: true }).await;

    let view = backend.get(&JobRef::new(queue(), new.id)).await.unwrap().unwrap();
    assert_eq!((view.state, view.job.attempts, view.job.deliveries), (JobState::Dead, 2, 2));
    assert_eq!(view.dead.unwrap().0, reason);
    assert_eq!(stats(&backend).await.dead, 1);

    let replay =
        Operation::Replay { queue: &queue(), jobs: &dead_ids(&backend).await[..], due: Due::NOW };
    assert_eq!(backend.operate(replay).await.unwrap().affected, 1);
    let third = claim(&backend, 1).await.jobs.remove(0);
    assert_eq!((third.job.attempts, third.job.losses), (0, 0));
    assert_eq!(third.job.payload, new.payload);
    settle(&backend, &third, Verdict::Done).await;
    let stats = stats(&backend).await;
    assert_eq!((stats.stored(), stats.totals.unwrap().done), (0, 1));
}

#[tokio::test]
async fn every_call_takes_lapsed_leases_into_account() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let new = fixture.keyed("order-1", Due::NOW);
    let _ = backend.schedule(vec![new.clone()]).await.unwrap();
    let lost = claim(&backend, 1).await.jobs.remove(0);
    assert_eq!(stats(&backend).await.running, 1);
    fixture.clock.advance(MINUTE);

    assert_eq!(stats(&backend).await.ready, 1);
    let settlement = Settlement::new(lost.lease(), Verdict::Done);
    assert_eq!(backend.settle(&[settlement]).await.unwrap(), [Settled::Stale]);
    let renewal = Renewal::new(lost.lease(), MINUTE);
    assert_eq!(backend.renew(&[renewal]).await.unwrap(), [Renewed::Lost]);
    let again = claim(&backend, 1).await.jobs.remove(0);
    assert_eq!((again.job.deliveries, again.job.losses, again.job.attempts), (2, 1, 0));
    assert_eq!(again.job.due, lost.job.due);
    fixture.clock.advance(MINUTE);
    let target = JobRef::new(queue(), new.id);
    assert_eq!(backend.cancel(&[target]).await.unwrap(), [Cancelled::Cancelled]);
    assert_eq!(stats(&backend).await.totals.unwrap().cancelled, 1);
}

#[tokio::test]
async fn releases_count_deliveries_only_if_started() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let _ = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap();
    for (started, deliveries_next) in [(false, 1), (true, 2), (false, 2)] {
        let leased = claim(&backend, 1).await.jobs.remove(0);
        settle(&backend, &leased, Verdict::Release { started }).await;
        let again = claim(&backend, 1).await.jobs.remove(0);
        assert_eq!(again.job.deliveries, deliveries_next);
        settle(&backend, &again, Verdict::Release { started: false }).await;
    }
}

#[tokio::test]
async fn key_conflicts_follow_the_policy_and_dead_jobs_release_their_key() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let first = fixture.keyed("k", 2 * SECOND);
    let policy = |on_conflict, due| fixture.keyed("k", due).on_conflict(on_conflict);
    let schedule = async |job: &NewJob| backend.schedule(vec![job.clone()]).await.unwrap()[0];
    assert!(matches!(schedule(&first).await, Scheduled::Created(_)));
    let kept = schedule(&policy(OnConflict::Keep, SECOND)).await;
    assert!(matches!(kept, Scheduled::Kept(receipt) if receipt.id == first.id));
    assert!(matches!(schedule(&policy(OnConflict::Latest, SECOND)).await, Scheduled::Kept(_)));
    let earlier = policy(OnConflict::Earliest, SECOND);
    assert!(matches!(schedule(&earlier).await, Scheduled::Replaced(r) if r.id == earlier.id));
    // The same id again: nothing changes.
    assert!(matches!(schedule(&earlier).await, Scheduled::Created(r) if r.id == earlier.id));
    let debounced = policy(OnConflict::Replace, Duration::ZERO);
    assert!(matches!(schedule(&debounced).await, Scheduled::Replaced(_)));

    let leased = claim(&backend, 1).await.jobs.remove(0);
    assert_eq!(leased.job.id, debounced.id);
    let late = schedule(&policy(OnConflict::Replace, SECOND)).await;
    assert!(matches!(late, Scheduled::AlreadyRunning(r) if r.id == debounced.id));
    let reason = DeadReason::new(DeadKind::Exhausted, "x");
    settle(&backend, &leased, Verdict::Dead { reason, failed: true }).await;
    assert!(matches!(schedule(&policy(OnConflict::Keep, SECOND)).await, Scheduled::Created(_)));
    let replay =
        Operation::Replay { queue: &queue(), jobs: &dead_ids(&backend).await[..], due: Due::NOW };
    assert_eq!(backend.operate(replay).await.unwrap().affected, 0, "its key is live again");
    let stats = stats(&backend).await;
    assert_eq!((stats.scheduled, stats.dead, stats.totals.unwrap().replaced), (1, 1, 2));
}

#[tokio::test]
async fn waiting_jobs_can_be_rescheduled_and_running_ones_cannot() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let new = fixture.job(2 * SECOND);
    let _ = backend.schedule(vec![new.clone()]).await.unwrap();
    let to = |due| [Reschedule { job: JobRef::new(queue(), new.id), due }];
    let moved = backend.reschedule(&to(Due::NOW)).await.unwrap();
    assert!(matches!(moved[0], Rescheduled::Moved(receipt) if receipt.id == new.id));
    assert_eq!(claim(&backend, 1).await.jobs.len(), 1);
    let refused = backend.reschedule(&to(Due::After(SECOND))).await.unwrap();
    assert_eq!(refused, [Rescheduled::AlreadyRunning]);
}

#[tokio::test]
async fn pages_are_in_due_order_and_equal_times_in_insertion_order() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let jobs: Vec<NewJob> = (0..5).map(|_| fixture.job(SECOND)).collect();
    let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
    let _ = backend.schedule(jobs).await.unwrap();
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let queue = queue();
        let params =
            BrowseParams::new(&queue, JobState::Scheduled).after(after).limit(2).payloads(true);
        let page = backend.browse(params).await.unwrap();
        seen.extend(page.jobs.iter().map(|view| view.job.id));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(seen, ids);
    fixture.clock.advance(SECOND);
    let claimed: Vec<_> = claim(&backend, 9).await.jobs.iter().map(|j| j.job.id).collect();
    assert_eq!(claimed, ids);
}

#[tokio::test]
async fn paused_queues_yield_no_jobs_and_purge_keeps_running_jobs() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let _ = backend.schedule((0..2_500).map(|_| fixture.job(Due::NOW)).collect()).await.unwrap();
    let queue = queue();
    let affected = async |operation| backend.operate(operation).await.unwrap().affected;
    assert_eq!(affected(Operation::Pause { queue: &queue }).await, 1);
    assert_eq!(affected(Operation::Pause { queue: &queue }).await, 0);
    let paused = claim(&backend, 1).await;
    assert!(paused.jobs.is_empty() && paused.next_due.is_none());
    assert_eq!(affected(Operation::Resume { queue: &queue }).await, 1);
    assert_eq!(claim(&backend, 1).await.jobs.len(), 1);
    assert_eq!(common::purge(&backend).await, 2_499);
    let stats = stats(&backend).await;
    assert_eq!((stats.running, stats.stored(), stats.totals.unwrap().removed), (1, 1, 2_499));
}

#[tokio::test]
async fn a_dead_job_that_is_listed_twice_counts_once() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let _ = backend.schedule(vec![fixture.job(Due::NOW), fixture.job(Due::NOW)]).await.unwrap();
    let mut ids = Vec::new();
    for leased in claim(&backend, 2).await.jobs {
        let reason = DeadReason::new(DeadKind::Rejected, "x");
        settle(&backend, &leased, Verdict::Dead { reason, failed: true }).await;
        ids.push(leased.job.id);
    }
    let queue = queue();
    let affected = async |operation| backend.operate(operation).await.unwrap().affected;
    let (replayed, removed) = ([ids[0]; 2], [ids[1]; 2]);
    let replay = Operation::Replay { queue: &queue, jobs: &replayed, due: Due::NOW };
    assert_eq!(affected(replay).await, 1);
    let remove = Operation::Remove { queue: &queue, jobs: &removed };
    assert_eq!(affected(remove).await, 1);
    let stats = stats(&backend).await;
    assert_eq!((stats.ready, stats.dead, stats.totals.unwrap().removed), (1, 0, 1));
}

#[tokio::test]
async fn a_claim_without_due_jobs_does_not_wait_for_the_write_lock() {
    let fixture = Fixture::new();
    let mut config = fixture.config();
    config.busy_timeout = Duration::ZERO;
    let backend = SqliteBackend::open(&config, &fixture.environment()).await.unwrap();
    let _ = backend.schedule(vec![fixture.job(SECOND), fixture.job(Due::NOW)]).await.unwrap();
    assert_eq!(claim(&backend, 1).await.jobs.len(), 1);
    let lock = WriteLock::acquire(&fixture);
    let claimed = claim(&backend, 10).await;
    assert!(claimed.jobs.is_empty());
    assert_eq!(claimed.next_due, Some(claimed.now + SECOND));
    fixture.clock.advance(MINUTE);
    // A claim for zero jobs finds waiting jobs and expired leases.
    let polled = claim(&backend, 0).await;
    assert_eq!((polled.jobs.len(), polled.next_due), (0, Some(claimed.now)));
    lock.release();
    assert_eq!(claim(&backend, 10).await.jobs.len(), 2);
}

#[tokio::test]
async fn a_claim_without_due_jobs_writes_nothing() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let _ = backend.schedule(vec![fixture.job(SECOND)]).await.unwrap();
    let log = || std::fs::metadata(fixture.dir.path().join("jobs.db-wal")).unwrap().len();
    let before = log();
    for _ in 0..10 {
        assert!(claim(&backend, 10).await.jobs.is_empty());
    }
    assert_eq!(log(), before);
}

#[tokio::test]
async fn jobs_with_invalid_rows_are_quarantined_with_their_payload() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let (bad, good) = (fixture.job(Due::NOW), fixture.job(Due::NOW));
    let _ = backend.schedule(vec![bad.clone(), good.clone()]).await.unwrap();
    let conn = dq_sqlite::rusqlite::Connection::open(fixture.path()).unwrap();
    conn.execute("UPDATE dq_job SET headers = 'nonsense' WHERE seq = 1", []).unwrap();
    let claimed = claim(&backend, 10).await;
    assert_eq!(claimed.jobs.len(), 1);
    assert_eq!(claimed.jobs[0].job.id, good.id);
    let [(job, reason)] = &claimed.quarantined[..] else { panic!("{claimed:?}") };
    assert_eq!((job.id, &job.payload, reason.kind), (bad.id, &bad.payload, DeadKind::Quarantined));
    let view = backend.get(&JobRef::new(queue(), bad.id)).await.unwrap().unwrap();
    assert_eq!(view.dead.unwrap().0.kind, DeadKind::Quarantined);
    assert_eq!(view.job.payload, bad.payload);
    let _ = stats(&backend).await;
    let quarantined = async || {
        let findings = backend.check().await;
        findings.into_iter().find(|finding| finding.code == "sqlite.quarantined")
    };
    let cause = quarantined().await.unwrap().cause;
    assert!(cause.starts_with(&format!("job {} could not be read", bad.id)), "{cause}");
    conn.execute("UPDATE dq_dead SET died = died - 90000000", []).unwrap();
    assert_eq!(quarantined().await, None, "it was 25 hours ago; a finding lasts a day");
}

#[tokio::test]
async fn every_call_after_close_fails_with_closed() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let _ = backend.schedule(vec![fixture.job(SECOND)]).await.unwrap();
    let listening = backend.listen(&[queue()]).await.unwrap();
    backend.close().await.unwrap();
    backend.close().await.unwrap();
    drop(listening);
    assert!(!fixture.dir.path().join("jobs.db-wal").exists(), "close removes the log");
    assert_kind(backend.now().await, ErrorKind::Closed);
    assert_kind(backend.schedule(vec![fixture.job(SECOND)]).await, ErrorKind::Closed);
    assert_kind(backend.stats(&[]).await, ErrorKind::Closed);
    assert_kind(backend.listen(&[queue()]).await, ErrorKind::Closed);
}
