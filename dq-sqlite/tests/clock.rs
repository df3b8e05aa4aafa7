//! A clock set back, and tokens that keep growing after a backup is restored.

use std::fs;
use std::time::Duration;

use crate::common::{Fixture, MINUTE, claim, open_store, queue, settle, stats};
use dq_core::{
    Backend, BrowseParams, Clock, Due, JobState, LeasedJob, NewJob, Renewal, Renewed, Settled,
    Settlement, Verdict,
};
use dq_sqlite::SqliteBackend;

const HOUR: Duration = Duration::from_secs(3_600);

async fn lease_a_job(fixture: &Fixture, backend: &SqliteBackend) -> LeasedJob {
    let due = Due::At(fixture.clock.now() - 2 * HOUR);
    let _ = backend.schedule(vec![fixture.job(due)]).await.unwrap();
    claim(backend, 1).await.jobs.remove(0)
}

async fn renew(backend: &SqliteBackend, leased: &LeasedJob) -> Renewed {
    let renewal = Renewal::new(leased.lease(), MINUTE);
    backend.renew(&[renewal]).await.unwrap()[0]
}

#[tokio::test]
async fn a_lease_from_before_the_clock_was_set_back_and_a_crash_ends() {
    let (fixture, backend) = open_store().await;
    let lost = lease_a_job(&fixture, &backend).await;
    backend.close().await.unwrap();
    fixture.clock.set(fixture.clock.now() - HOUR);

    let backend = fixture.open().await;
    assert!(claim(&backend, 1).await.jobs.is_empty(), "its holder may still run");
    fixture.clock.advance(MINUTE);
    let again = claim(&backend, 1).await.jobs.remove(0);
    assert_eq!((again.job.id, again.job.losses), (lost.job.id, 1));
    assert!(again.token > lost.token);
    let late = Settlement::new(lost.lease(), Verdict::Done);
    assert_eq!(backend.settle(&[late]).await.unwrap(), [Settled::LostLease]);
}

#[tokio::test]
async fn a_lease_that_was_renewed_before_the_clock_was_set_back_ends() {
    let (fixture, backend) = open_store().await;
    let leased = lease_a_job(&fixture, &backend).await;
    for _ in 0..60 {
        fixture.clock.advance(MINUTE / 2);
        assert!(matches!(renew(&backend, &leased).await, Renewed::Until(_)));
    }
    backend.close().await.unwrap();
    // After the grant, and long before the last renewal.
    fixture.clock.set(fixture.clock.now() - HOUR / 3);
    let backend = fixture.open().await;
    assert!(claim(&backend, 1).await.jobs.is_empty(), "its holder may still run");
    fixture.clock.advance(MINUTE);
    assert_eq!(claim(&backend, 1).await.jobs.len(), 1);
}

#[tokio::test]
async fn a_process_that_is_open_sees_that_the_clock_was_set_back() {
    let fixture = Fixture::new();
    let (crashed, backend) = (fixture.open().await, fixture.open().await);
    let leased = lease_a_job(&fixture, &crashed).await;
    fixture.clock.set(fixture.clock.now() - HOUR);

    let leased_until = async || {
        let queue = queue();
        let page = backend.browse(BrowseParams::new(&queue, JobState::Running)).await.unwrap();
        page.jobs[0].leased_until
    };
    let end = Some(fixture.clock.now() + MINUTE);
    assert_eq!(leased_until().await, end, "no call has written the new end yet");
    assert_eq!(claim(&backend, 0).await.next_due, end);
    assert_eq!(leased_until().await, end);
    fixture.clock.advance(MINUTE);
    assert_eq!(claim(&backend, 1).await.jobs[0].job.id, leased.job.id);
}

#[tokio::test]
async fn a_holder_keeps_its_lease_when_the_clock_is_set_back() {
    let fixture = Fixture::new();
    let (holder, backend) = (fixture.open().await, fixture.open().await);
    let leased = lease_a_job(&fixture, &holder).await;
    fixture.clock.set(fixture.clock.now() - HOUR);
    for _ in 0..4 {
        assert!(claim(&backend, 1).await.jobs.is_empty());
        assert_eq!(stats(&backend).await.running, 1);
        fixture.clock.advance(MINUTE / 2);
        let until = fixture.clock.now() + MINUTE;
        assert_eq!(renew(&holder, &leased).await, Renewed::Until(until));
    }
    settle(&holder, &leased, Verdict::Done).await;
}

#[tokio::test]
async fn tokens_grow_after_the_file_is_restored_from_a_copy() {
    let fixture = Fixture::new();
    let copy = fixture.dir.path().join("copy.db");
    let backend = fixture.open().await;
    let jobs: Vec<NewJob> = (0..3).map(|_| fixture.job(Due::NOW)).collect();
    let _ = backend.schedule(jobs).await.unwrap();
    backend.close().await.unwrap();
    fs::copy(fixture.path(), &copy).unwrap();

    let backend = fixture.open().await;
    let before = claim(&backend, 3).await.jobs;
    assert!(before.windows(2).all(|pair| pair[0].token < pair[1].token));
    backend.close().await.unwrap();
    fs::copy(&copy, fixture.path()).unwrap();

    fixture.clock.advance(Duration::from_millis(1));
    let backend = fixture.open().await;
    let after = claim(&backend, 1).await.jobs.remove(0);
    assert!(after.token > before[2].token, "{:?} after {:?}", after.token, before[2].token);
}
