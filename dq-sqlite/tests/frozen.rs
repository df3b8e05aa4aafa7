//! Format version 1: a file written once must still be read the same way.

use std::fs;
use std::time::Duration;

use crate::common::{Fixture, queue, stats};
use dq_core::{
    Backend, BrowseParams, Clock, DeadKind, Due, Ending, FencingToken, JobId, JobKey, JobRef,
    JobState, JobView, Lease, NewJob, Scheduled, Settled, Settlement, Verdict,
};

/// Written at version 1, with jobs in each state. Keep it: a later version writes a different file.
const FILE: &[u8] = include_bytes!("fixtures/format-1.db");

const TOKEN: FencingToken = FencingToken(1_704_067_201_000_003);

const SECOND: Duration = Duration::from_secs(1);

fn id(last: u8) -> JobId {
    format!("01900000-0000-7000-8000-0000000000{last:02x}").parse().unwrap()
}

fn job(last: u8) -> NewJob {
    let key = JobKey::new(format!("order-{last}")).unwrap();
    let mut job = NewJob::new(id(last), queue(), Due::NOW, vec![last].into()).key(key);
    job.headers.insert("tenant", "acme");
    job
}

#[tokio::test]
async fn the_tables_are_those_of_the_file() {
    let (fixture, new) = (Fixture::new(), Fixture::new());
    fs::write(fixture.path(), FILE).unwrap();
    let [of_file, of_new] = [fixture, new].map(|fixture| async move {
        fixture.open().await;
        let conn = fixture.conn();
        let mut sql = conn.prepare("SELECT sql FROM sqlite_schema ORDER BY name").unwrap();
        let rows = sql.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect::<Vec<Option<String>>>()
    });
    assert_eq!(of_file.await, of_new.await);
}

#[tokio::test]
async fn everything_in_the_file_is_read() {
    let fixture = Fixture::new();
    fs::write(fixture.path(), FILE).unwrap();
    let started = fixture.clock.now().as_millis();
    fixture.clock.advance(3 * SECOND);
    let backend = fixture.open().await;
    let counts = stats(&backend).await;
    assert_eq!((counts.scheduled, counts.running, counts.dead), (1, 1, 1));
    let totals = counts.totals.unwrap();
    assert_eq!((totals.done, totals.skipped), (1, 1));
    let get = async |last| backend.get(&JobRef::new(queue(), id(last))).await.unwrap().unwrap();

    // First and current due time.
    let dues =
        |view: &JobView| [view.job.first_due, view.job.due].map(|due| due.as_millis() - started);

    let done = get(1).await;
    assert_eq!(dues(&done), [0, 0]);
    let ended = done.ended.unwrap();
    assert_eq!(
        (ended.ending, ended.reason, ended.at.as_millis()),
        (Ending::Done, None, started + 2_000)
    );
    assert_eq!((done.job.attempts, done.job.deliveries), (0, 1));
    assert_eq!((done.worker.as_deref(), done.job.key.unwrap().as_str()), (Some("test"), "order-1"));
    assert_eq!(done.leased_since.unwrap().as_millis(), started + 1_000);
    let skipped = get(2).await;
    assert_eq!((dues(&skipped), skipped.job.deliveries), ([0, 2_000], 2));
    let ended = skipped.ended.unwrap();
    assert_eq!((ended.ending, ended.reason.as_deref()), (Ending::Skipped, Some("it is paid")));
    let queue = queue();
    let listed = backend.browse(BrowseParams::new(&queue, JobState::Ended)).await.unwrap();
    assert_eq!(listed.jobs.len(), 2);

    let retried = get(3).await;
    assert_eq!((retried.state, retried.job.attempts), (JobState::Scheduled, 1));
    assert_eq!(dues(&retried), [0, 62_000]);
    assert_eq!(retried.last_error.as_deref(), Some("connect refused"));
    assert_eq!(
        (retried.job.headers.get("tenant"), &retried.job.payload[..]),
        (Some("acme"), &[3][..])
    );
    let running = get(4).await;
    assert_eq!((running.worker.as_deref(), dues(&running)), (Some("test"), [0, 0]));
    assert_eq!(running.leased_since.unwrap().as_millis(), started + 1_000);
    let dead = get(5).await;
    assert_eq!((dead.job.attempts, dues(&dead)), (2, [0, 2_000]));
    let (reason, _) = dead.dead.unwrap();
    assert_eq!((reason.kind, &*reason.message), (DeadKind::Rejected, "no such host"));

    let again = backend.schedule(vec![job(1)]).await.unwrap();
    assert!(matches!(again[..], [Scheduled::Ended(_)]), "its id is pinned: {again:?}");
    let runners = backend.runners().await.unwrap();
    assert_eq!(
        (runners[0].name.as_str(), &runners[0].info[..]),
        ("web-1", &b"{\"host\":\"a\"}"[..])
    );

    let lease = Lease { queue: queue.clone(), job: id(4), token: TOKEN };
    let settled = backend.settle(&[Settlement::new(lease, Verdict::Done)]).await.unwrap();
    assert_eq!(settled, [Settled::Accepted]);
}
