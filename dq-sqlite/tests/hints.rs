//! Hints to listeners about due jobs in their queue.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Fixture, TEST_TIMEOUT, WriteLock, open_store, queue};
use bytes::Bytes;
use dq_core::{Backend, Clock, Due, Hint, OnConflict, Scheduled, Timestamp, Wakeups};
use dq_sqlite::rusqlite::params;
use dq_sqlite::rusqlite::types::Null;
use dq_sqlite::{SCHEDULE_SQL, SqliteBackend};

const SECOND: Duration = Duration::from_secs(1);

async fn hint(wakeups: &mut Wakeups) -> Timestamp {
    tokio::time::timeout(TEST_TIMEOUT, wakeups.next()).await.unwrap().due
}

async fn hint_within(timeout: Duration, wakeups: &mut Wakeups) -> Option<Hint> {
    tokio::time::timeout(timeout, wakeups.next()).await.ok()
}

#[tokio::test]
async fn a_job_that_replaces_another_of_its_transaction_wakes_listeners() {
    let (fixture, backend) = open_store().await;
    let mut wakeups = backend.listen(&[queue()], "test").await.unwrap();
    let first = fixture.keyed("k", SECOND);
    let second = fixture.keyed("k", 2 * SECOND).on_conflict(OnConflict::Replace);
    let scheduled = backend.schedule(vec![first, second]).await.unwrap();
    assert_eq!(hint(&mut wakeups).await, scheduled[1].due());
    // A job due after its queue's first job causes no hint.
    let _ = backend.schedule(vec![fixture.job(3 * SECOND)]).await.unwrap();
    assert_eq!(hint_within(SECOND / 10, &mut wakeups).await, None);
}

#[tokio::test]
async fn a_commit_of_others_wakes_listeners_even_if_the_transaction_that_detects_it_fails() {
    let (fixture, backend) = open_store().await;
    let backend = Arc::new(backend);
    fixture.reject_payload("poison");
    let mut wakeups = backend.listen(&[queue()], "test").await.unwrap();
    // The listener hears of the trigger's commit; afterwards no hint is outstanding.
    let _ = backend.schedule(vec![fixture.job(3 * SECOND)]).await.unwrap();
    while hint_within(SECOND, &mut wakeups).await.is_some() {}

    let lock = WriteLock::acquire(&fixture);
    let failing = send_poison(&fixture, &backend);
    tokio::task::yield_now().await;
    let due = fixture.clock.now() + SECOND;
    let id = fixture.job(Due::NOW).id.to_bytes();
    let values = params!["mail", id, Null, due.as_millis(), "{}", Null, Null];
    lock.0.execute(SCHEDULE_SQL, values).unwrap();
    lock.release();
    failing.await.unwrap().unwrap_err();
    // A hint for the first job may be repeated.
    while hint(&mut wakeups).await != due {}
}

fn send_poison(
    fixture: &Fixture,
    backend: &Arc<SqliteBackend>,
) -> tokio::task::JoinHandle<dq_core::Result<Vec<Scheduled>>> {
    let backend = Arc::clone(backend);
    let poison = fixture.job(Due::NOW).payload(Bytes::from_static(b"poison"));
    tokio::spawn(async move { backend.schedule(vec![poison]).await })
}
