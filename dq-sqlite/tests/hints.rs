//! What listeners are told, and when.

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{Bed, Dam, PATIENCE, queue};
use dq_core::{Backend, Clock, Due, Hint, NewJob, OnConflict, Scheduled, Timestamp, Wakeups};
use dq_sqlite::rusqlite::params;
use dq_sqlite::rusqlite::types::Null;
use dq_sqlite::{SCHEDULE_SQL, SqliteBackend};

const SECOND: Duration = Duration::from_secs(1);

/// A hint that has to come.
async fn hint(wakeups: &mut Wakeups) -> Timestamp {
    tokio::time::timeout(PATIENCE, wakeups.next()).await.unwrap().due
}

/// A hint that comes within this, if one comes.
async fn hint_within(patience: Duration, wakeups: &mut Wakeups) -> Option<Hint> {
    tokio::time::timeout(patience, wakeups.next()).await.ok()
}

#[tokio::test]
async fn a_job_whose_forerunner_went_in_the_same_transaction_is_hinted_at() {
    let bed = Bed::new();
    let backend = bed.open().await;
    let mut wakeups = backend.listen(&[queue()]).await.unwrap();
    let first = bed.keyed("k", SECOND);
    let second = NewJob { on_conflict: OnConflict::Replace, ..bed.keyed("k", 2 * SECOND) };
    let answers = backend.schedule(vec![first, second]).await.unwrap();
    assert_eq!(hint(&mut wakeups).await, answers[1].due());
    // One that comes after the first of its queue concerns nobody.
    let _ = backend.schedule(vec![bed.job(3 * SECOND)]).await.unwrap();
    assert_eq!(hint_within(SECOND / 10, &mut wakeups).await, None);
}

#[tokio::test]
async fn a_commit_of_others_is_told_though_the_transaction_that_saw_it_failed() {
    let bed = Bed::new();
    let backend = Arc::new(bed.open().await);
    bed.forbid("poison");
    let mut wakeups = backend.listen(&[queue()]).await.unwrap();
    // Hears of the trigger; from here on nothing is known that was not told.
    let _ = backend.schedule(vec![bed.job(3 * SECOND)]).await.unwrap();
    while hint_within(SECOND, &mut wakeups).await.is_some() {}

    let dam = Dam::close(&bed);
    let failing = send_poison(&bed, &backend);
    // The tests' runtime has one thread: the call is in the writer's channel after this.
    tokio::task::yield_now().await;
    let due = bed.clock.now() + SECOND;
    let id = bed.job(Due::NOW).id.to_bytes();
    let values = params!["mail", id, Null, due.as_millis(), "{}", Null, Null];
    dam.0.execute(SCHEDULE_SQL, values).unwrap();
    dam.open();
    failing.await.unwrap().unwrap_err();
    // Of the first job it may be told again.
    while hint(&mut wakeups).await != due {}
}

fn send_poison(
    bed: &Bed,
    backend: &Arc<SqliteBackend>,
) -> tokio::task::JoinHandle<dq_core::Result<Vec<Scheduled>>> {
    let backend = Arc::clone(backend);
    let poison = NewJob { payload: Bytes::from_static(b"poison"), ..bed.job(Due::NOW) };
    tokio::spawn(async move { backend.schedule(vec![poison]).await })
}
