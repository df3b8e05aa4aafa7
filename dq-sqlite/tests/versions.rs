//! Versions of this library that share a file: older tables, newer tables, and an upgrade while a
//! process is running.

mod common;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use common::{Fixture, MINUTE, assert_kind, claim, dead_ids, queue, settle, stats};
use dq_core::{
    Backend, DeadKind, Due, Ending, Error, ErrorKind, FencingToken, JobId, JobRef, JobState, Lease,
    Operation, QueueName, Renewal, Renewed, Settled, Settlement, Timestamp, Verdict,
};
use dq_sqlite::rusqlite::{Connection, TransactionBehavior};

/// A file that version 2 wrote, with a job in each state and a paused queue. Its clock was that of
/// the fixture.
const FORMAT_2: &[u8] = include_bytes!("fixtures/format-2.db");

/// The same of version 4.
const FORMAT_4: &[u8] = include_bytes!("fixtures/format-4.db");

/// What a later version might add: columns and tables that this version does not know.
const ADDITIONS: &str = "
    ALTER TABLE dq_meta ADD COLUMN later INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE dq_queue ADD COLUMN later INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE dq_job ADD COLUMN later INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE dq_due ADD COLUMN later INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE dq_lease ADD COLUMN later INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE dq_dead ADD COLUMN later INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE dq_note ADD COLUMN later INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE dq_ended ADD COLUMN later INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE dq_pin ADD COLUMN later INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE dq_runner ADD COLUMN later INTEGER NOT NULL DEFAULT 1;
    CREATE TABLE dq_later (x);
    UPDATE dq_meta SET version = 1000;";

fn execute(fixture: &Fixture, sql: &str) {
    Connection::open(fixture.path()).unwrap().execute_batch(sql).unwrap();
}

fn integer(fixture: &Fixture, sql: &str) -> i64 {
    let conn = Connection::open(fixture.path()).unwrap();
    conn.query_row(sql, [], |row| row.get(0)).unwrap()
}

fn id(last: u8) -> JobId {
    format!("01900000-0000-7000-8000-0000000000{last:02x}").parse().unwrap()
}

fn assert_outdated(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(error.message().contains("1000"), "{error}");
    assert!(error.remedy_text().unwrap().contains("upgrade dq-sqlite"), "{error}");
}

#[tokio::test]
async fn a_file_of_version_2_keeps_all_its_jobs() {
    let fixture = Fixture::new();
    fs::write(fixture.path(), FORMAT_2).unwrap();
    let backend = fixture.open().await;
    let counts = stats(&backend).await;
    assert_eq!((counts.scheduled, counts.running, counts.dead), (2, 1, 1));
    assert_eq!(counts.totals.unwrap().done, 1);

    // The lease of the old version is held, and its token settles it.
    let view = backend.get(&JobRef::new(queue(), id(3))).await.unwrap().unwrap();
    assert_eq!((view.state, view.job.attempts, view.job.deliveries), (JobState::Running, 1, 2));
    let lease = Lease { queue: queue(), job: id(3), token: FencingToken(4) };
    let renewal = Renewal::new(lease.clone(), 2 * MINUTE);
    assert!(matches!(backend.renew(&[renewal]).await.unwrap()[0], Renewed::Until(_)));
    let settlement = Settlement::new(lease, Verdict::retry(Due::NOW, "a reason"));
    assert_eq!(backend.settle(&[settlement]).await.unwrap(), [Settled::Accepted]);
    let again = claim(&backend, 9).await.jobs.remove(0);
    assert_eq!((again.job.id, again.job.attempts, again.job.max_attempts), (id(3), 2, Some(9)));
    assert!(again.token > FencingToken(4));

    let view = backend.get(&JobRef::new(queue(), id(1))).await.unwrap().unwrap();
    let (reason, _) = view.dead.unwrap();
    assert_eq!((reason.kind, reason.message.as_str()), (DeadKind::Exhausted, "no such host"));
    assert_eq!((view.job.headers.get("a"), &view.job.payload[..]), (Some("b"), &[0, 255][..]));
    fixture.clock.advance(MINUTE);
    let paused = QueueName::new("paused").unwrap();
    assert!(backend.stats(std::slice::from_ref(&paused)).await.unwrap()[0].paused);
    assert_eq!(backend.operate(Operation::Resume { queue: &paused }).await.unwrap().affected, 1);
    let due = claim(&backend, 9).await.jobs;
    let order = due.into_iter().find(|leased| leased.job.id == id(4)).unwrap();
    assert_eq!(order.job.headers.get("content-type"), Some("text/plain"));
    assert_eq!(order.job.key.unwrap().as_str(), "order-1");
    assert!(backend.schedule(vec![fixture.job(MINUTE)]).await.unwrap()[0].is_stored());
}

#[tokio::test]
async fn a_file_without_history_gets_one_and_keeps_its_jobs_and_leases() {
    let fixture = Fixture::new();
    fs::write(fixture.path(), FORMAT_4).unwrap();
    let backend = fixture.open().await;
    let counts = stats(&backend).await;
    assert_eq!((counts.scheduled, counts.running, counts.dead), (2, 1, 1));
    assert_eq!(counts.totals.unwrap().done, 1);
    let get = async |last| backend.get(&JobRef::new(queue(), id(last))).await.unwrap();
    let running = get(3).await.unwrap();
    assert_eq!((running.state, running.worker.as_deref()), (JobState::Running, Some("test")));
    assert_eq!((running.leased_since, running.last_error), (None, None));
    assert_eq!(get(9).await, None, "no job that ended before is remembered");

    let token = FencingToken(1_704_067_200_000_003);
    let lease = Lease { queue: queue(), job: id(3), token };
    let settlement = Settlement::new(lease, Verdict::Done);
    assert_eq!(backend.settle(&[settlement]).await.unwrap(), [Settled::Accepted]);
    let ended = get(3).await.unwrap();
    assert_eq!((ended.state, ended.job.attempts, ended.job.deliveries), (JobState::Ended, 1, 2));
    assert_eq!((ended.job.max_attempts, ended.job.key.unwrap().as_str()), (Some(9), "k"));
    assert_eq!((ended.worker.as_deref(), ended.leased_since), (Some("test"), None));

    let jobs = [id(1)];
    let remove = Operation::Remove { queue: &queue(), jobs: &jobs };
    assert_eq!(backend.operate(remove).await.unwrap().affected, 1);
    let removed = get(1).await.unwrap().ended.unwrap();
    assert_eq!(removed.ending, Ending::Removed);
    assert_eq!(removed.reason.as_deref(), Some("exhausted: no such host"));
    let order = get(4).await.unwrap();
    assert_eq!(order.job.headers.get("content-type"), Some("text/plain"));
}

#[tokio::test]
async fn a_process_of_version_2_goes_on_after_an_upgrade() {
    let fixture = Fixture::new();
    fs::write(fixture.path(), FORMAT_2).unwrap();
    let backend = fixture.open().await;
    // It checks this number, and nothing else, in each of its transactions and when it connects.
    assert_eq!(integer(&fixture, "SELECT format FROM dq_meta"), 2);
    assert!(integer(&fixture, "SELECT version FROM dq_meta") > 2);
    // These are its statements for: schedule, claim, settle with a retry, renew.
    let conn = Connection::open(fixture.path()).unwrap();
    let now = backend.now().await.unwrap().as_millis();
    conn.execute_batch(&format!(
        "BEGIN IMMEDIATE;
         SELECT format, seq, token, store FROM dq_meta;
         INSERT INTO dq_job (seq, id, q, key, due, created, max_attempts, headers, payload)
             VALUES (100, x'01900000000070008000000000000064', 1, 'old', {now}, {now}, NULL, NULL,
                     x'7b7d') ON CONFLICT DO NOTHING;
         INSERT INTO dq_due (q, at, seq) VALUES (1, {now}, 100);
         UPDATE dq_meta SET seq = 100, token = 7;
         COMMIT;
         BEGIN IMMEDIATE;
         DELETE FROM dq_due WHERE q = 1 AND (at, seq) <= ({now}, 100);
         INSERT INTO dq_lease (seq, q, until, token, worker)
             VALUES (100, 1, {now} + 60000, 8, 'old');
         UPDATE dq_meta SET seq = 100, token = 8;
         COMMIT;
         UPDATE dq_lease SET until = {now} + 61000 WHERE seq = 100;",
    ))
    .unwrap();
    let view = backend.get(&JobRef::new(queue(), id(100))).await.unwrap().unwrap();
    let until = Timestamp::from_millis(now + 61_000);
    assert_eq!((view.state, view.leased_until), (JobState::Running, Some(until)));
    fixture.clock.advance(Duration::from_secs(61));
    let ids: Vec<JobId> = claim(&backend, 9).await.jobs.iter().map(|job| job.job.id).collect();
    assert!(ids.contains(&id(100)), "the lease of the old process lapses: {ids:?}");
    // And it settles a lease, which this version granted, with the token that it knows.
    let deleted = conn.execute(
        "DELETE FROM dq_lease WHERE token = (SELECT token FROM dq_lease WHERE seq = 100) \
         AND seq = (SELECT seq FROM dq_job WHERE id = x'01900000000070008000000000000064' \
         AND q = 1)",
        [],
    );
    assert_eq!(deleted.unwrap(), 1);
}

#[tokio::test]
async fn tables_of_a_later_version_with_additions_are_used_as_before() {
    let fixture = Fixture::new();
    fixture.open().await.close().await.unwrap();
    execute(&fixture, ADDITIONS);
    let backend = fixture.open().await;
    assert_eq!(integer(&fixture, "SELECT version FROM dq_meta"), 1000, "is not changed back");
    full_life(&fixture, &backend).await;
}

#[tokio::test]
async fn a_running_process_goes_on_when_a_later_version_adds_to_the_tables() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    full_life(&fixture, &backend).await;
    execute(&fixture, ADDITIONS);
    full_life(&fixture, &backend).await;
}

/// Takes a job through all states, in its own transaction and in that of the caller.
async fn full_life(fixture: &Fixture, backend: &dq_sqlite::SqliteBackend) {
    let _ = backend.schedule(vec![fixture.keyed("k", MINUTE)]).await.unwrap();
    let mut conn = Connection::open(fixture.path()).unwrap();
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let _ = backend.schedule_in(&transaction, vec![fixture.job(MINUTE)]).unwrap();
    transaction.commit().unwrap();
    fixture.clock.advance(MINUTE);
    let mut leased = claim(backend, 2).await.jobs;
    assert_eq!(leased.len(), 2);
    let renewal = Renewal::new(leased[0].lease(), MINUTE);
    assert!(matches!(backend.renew(&[renewal]).await.unwrap()[0], Renewed::Until(_)));
    let reason = dq_core::DeadReason::new(DeadKind::Rejected, "x");
    settle(backend, &leased[0], Verdict::Dead { reason, failed: true }).await;
    settle(backend, &leased.pop().unwrap(), Verdict::retry(Due::NOW, "a reason")).await;
    let replay =
        Operation::Replay { queue: &queue(), jobs: &dead_ids(backend).await[..], due: Due::NOW };
    assert_eq!(backend.operate(replay).await.unwrap().affected, 1);
    assert_eq!(stats(backend).await.ready, 2);
    for job in claim(backend, 2).await.jobs {
        settle(backend, &job, Verdict::Done).await;
    }
    assert_eq!(stats(backend).await.stored(), 0);
}

#[tokio::test]
async fn a_version_that_may_not_write_or_read_is_refused_at_connecting() {
    for minimum in ["min_writer", "min_reader"] {
        let fixture = Fixture::new();
        fixture.open().await.close().await.unwrap();
        execute(&fixture, &format!("UPDATE dq_meta SET version = 1000, {minimum} = 1000"));
        assert_outdated(&fixture.open_error(&fixture.config()).await);
    }
}

#[tokio::test]
async fn a_running_process_that_may_not_write_any_more_settles_what_it_holds() {
    let fixture = Fixture::new();
    let backend = Arc::new(fixture.open().await);
    let _ = backend.schedule((0..3).map(|_| fixture.job(Due::NOW)).collect()).await.unwrap();
    let leased = claim(&*backend, 2).await.jobs;
    execute(&fixture, "UPDATE dq_meta SET version = 1000, min_writer = 1000");

    assert_outdated(&backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap_err());
    assert_outdated(&common::try_claim(&*backend, 1).await.unwrap_err());
    assert_outdated(&common::try_claim(&*backend, 0).await.unwrap_err());
    let target = JobRef::new(queue(), leased[0].job.id);
    assert_outdated(&backend.cancel(&[target]).await.unwrap_err());
    let pause = Operation::Pause { queue: &queue() };
    assert_outdated(&backend.operate(pause).await.unwrap_err());
    let mut conn = Connection::open(fixture.path()).unwrap();
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let refused = backend.schedule_in(&transaction, vec![fixture.job(Due::NOW)]);
    assert_outdated(&refused.unwrap_err());
    drop(transaction);
    let findings = backend.check().await;
    assert!(findings.iter().any(|finding| finding.code == "sqlite.outdated"), "{findings:?}");

    fixture.clock.advance(MINUTE / 2);
    let renewal = Renewal::new(leased[0].lease(), MINUTE);
    assert!(matches!(backend.renew(&[renewal]).await.unwrap()[0], Renewed::Until(_)));
    settle(&*backend, &leased[0], Verdict::Done).await;
    // The lease that was not renewed lapses, although only newer versions return it to its queue.
    fixture.clock.advance(MINUTE / 2);
    let late = Settlement::new(leased[1].lease(), Verdict::Done);
    assert_eq!(backend.settle(&[late]).await.unwrap(), [Settled::Stale]);
    let late = Renewal::new(leased[1].lease(), MINUTE);
    assert_eq!(backend.renew(&[late]).await.unwrap(), [Renewed::Lost]);
    let counts = stats(&*backend).await;
    assert_eq!((counts.ready, counts.totals.unwrap().done), (2, 1));
    assert_eq!(integer(&fixture, "SELECT count(*) FROM dq_lease"), 1, "nothing else is written");
}

#[tokio::test]
async fn a_refused_call_does_not_fail_a_settlement_of_the_same_transaction() {
    let fixture = Fixture::new();
    let backend = Arc::new(fixture.open().await);
    let _ = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap();
    let leased = claim(&*backend, 1).await.jobs.remove(0);
    execute(&fixture, "UPDATE dq_meta SET version = 1000, min_writer = 1000");
    let lock = common::WriteLock::acquire(&fixture);
    let mut refused = Vec::new();
    for _ in 0..2 {
        let (backend, job) = (Arc::clone(&backend), fixture.job(Due::NOW));
        refused.push(tokio::spawn(async move { backend.schedule(vec![job]).await }));
        // The runtime has one thread: the call runs until it waits for its reply.
        tokio::task::yield_now().await;
    }
    let settling = {
        let backend = Arc::clone(&backend);
        tokio::spawn(async move { settle(&*backend, &leased, Verdict::Done).await })
    };
    tokio::task::yield_now().await;
    lock.release();
    for call in refused {
        assert_outdated(&call.await.unwrap().unwrap_err());
    }
    settling.await.unwrap();
}

#[tokio::test]
async fn a_running_process_that_may_not_read_any_more_is_refused_and_still_settles() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let _ = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap();
    let leased = claim(&backend, 1).await.jobs.remove(0);
    execute(&fixture, "UPDATE dq_meta SET version = 1000, min_writer = 1000, min_reader = 1000");
    assert_outdated(&backend.stats(&[queue()]).await.unwrap_err());
    assert_kind(backend.get(&JobRef::new(queue(), leased.job.id)).await, ErrorKind::Incompatible);
    settle(&backend, &leased, Verdict::Done).await;
}

#[tokio::test]
async fn a_running_process_that_may_not_write_any_more_settles_after_a_failed_commit() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let _ = backend.schedule(vec![fixture.job(Due::NOW)]).await.unwrap();
    let leased = claim(&backend, 1).await.jobs.remove(0);
    // A foreign key violation that is checked only at the commit, after which the file is opened
    // again.
    execute(
        &fixture,
        "UPDATE dq_meta SET version = 1000, min_writer = 1000;
         CREATE TABLE parent (id INTEGER PRIMARY KEY);
         CREATE TABLE child (id REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
         CREATE TRIGGER dangle AFTER DELETE ON dq_lease BEGIN INSERT INTO child VALUES (1); END",
    );
    let settlement = Settlement::new(leased.lease(), Verdict::Done);
    assert_kind(backend.settle(&[settlement]).await, ErrorKind::OutcomeUnknown);
    execute(&fixture, "DROP TRIGGER dangle");
    settle(&backend, &leased, Verdict::Done).await;
}
