//! What listeners are told, and when.

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{Bed, Dam, queue};
use dq_core::{Backend, Clock, Due, Hint, NewJob, OnConflict, Wakeups};
use dq_sqlite::{SCHEDULE_SQL, SqliteBackend};

const SECOND: Duration = Duration::from_secs(1);

/// A hint that comes soon, if one comes.
async fn hint(wakeups: &mut Wakeups) -> Option<Hint> {
    tokio::time::timeout(SECOND, wakeups.next()).await.ok()
}

#[tokio::test]
async fn a_job_whose_forerunner_went_in_the_same_transaction_is_hinted_at() {
    let bed = Bed::new();
    let backend = bed.open().await;
    let mut wakeups = backend.listen(&[queue()]).await.unwrap();
    let first = bed.keyed("k", SECOND);
    let second = NewJob { on_conflict: OnConflict::Replace, ..bed.keyed("k", 2 * SECOND) };
    let answers = backend.schedule(vec![first, second]).await.unwrap();
    assert_eq!(hint(&mut wakeups).await.map(|hint| hint.due), Some(answers[1].due()));
    // One that comes after the first of its queue concerns nobody.
    let _ = backend.schedule(vec![bed.job(3 * SECOND)]).await.unwrap();
    let quiet = tokio::time::timeout(SECOND / 10, wakeups.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
}
