//! Groups: what concurrent claims and settlements leave, and settlements in callers' transactions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dq_core::sync::lock;
use dq_core::{
    Backend, ClaimParams, Due, Flow, LeasedJob, Operation, Renewal, Renewed, Settled, Settlement,
    Verdict, Want,
};
use dq_postgres::PostgresBackend;
use dq_testkit::fixture::{poll, wait_until};
use tokio::task::JoinSet;

use crate::common::{
    LEASE, claim, claim_as, client, connect, database, declare, job, queue, settle,
};

const LIMIT: u32 = 2;
const GROUPS: [&str; 3] = ["a", "b", "c"];
const JOBS: usize = 60;

async fn schedule(backend: &PostgresBackend, group: &str, jobs: usize) {
    backend.schedule((0..jobs).map(|_| job(Due::NOW).group(group)).collect()).await.unwrap();
}

#[derive(Default)]
struct Progress {
    running: HashMap<String, u32>,
    done: usize,
}

/// Claims and settles until all jobs are done.
async fn work(store: Arc<PostgresBackend>, worker: String, progress: Arc<Mutex<Progress>>) {
    while lock(&progress).done < GROUPS.len() * JOBS {
        let leased = claim_as(&store, 3, &worker).await;
        for leased in &leased {
            let group = leased.job.group().unwrap();
            let mut progress = lock(&progress);
            let running = progress.running.entry(group.to_owned()).or_default();
            *running += 1;
            assert!(*running <= LIMIT, "{running} jobs of {group} run");
        }
        for leased in leased {
            *lock(&progress).running.get_mut(leased.job.group().unwrap()).unwrap() -= 1;
            let done = Settlement::new(leased.lease(), Verdict::Done);
            assert_eq!(store.settle(&[done]).await.unwrap(), [Settled::Accepted]);
            lock(&progress).done += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_claims_and_settlements_keep_the_limit_and_leave_nothing_parked() {
    for isolation in ["read committed", "repeatable read"] {
        let url = database().await;
        let name = url.rsplit('/').next().unwrap();
        let setting = format!("ALTER DATABASE {name} SET default_transaction_isolation = ");
        client(&url).await.batch_execute(&format!("{setting} '{isolation}'")).await.unwrap();
        let stores = [Arc::new(connect(&url).await), Arc::new(connect(&url).await)];
        declare(&stores[0], Flow::UNLIMITED.group_max_running(LIMIT)).await;
        for group in GROUPS {
            schedule(&stores[0], group, JOBS).await;
        }
        let progress = Arc::new(Mutex::new(Progress::default()));
        let mut workers = JoinSet::new();
        for n in 0..6 {
            let store = Arc::clone(&stores[n % 2]);
            workers.spawn(work(store, format!("worker-{n}"), Arc::clone(&progress)));
        }
        let worked = tokio::time::timeout(Duration::from_secs(240), workers.join_all()).await;
        let done = lock(&progress).done;
        worked.unwrap_or_else(|_| panic!("{isolation}: {done} jobs ended, others stay parked"));
    }
}

/// The job that a claim parks meanwhile is not in the transaction's snapshot.
#[tokio::test]
async fn a_settlement_in_a_callers_transaction_makes_room_at_its_commit() {
    for isolation in ["READ COMMITTED", "SERIALIZABLE"] {
        let url = database().await;
        let backend = connect(&url).await;
        declare(&backend, Flow::UNLIMITED.group_max_running(1)).await;
        schedule(&backend, "a", 3).await;
        let leased = claim_as(&backend, 1, "first").await.remove(0);
        let caller = client(&url).await;
        let done = format!(
            "BEGIN ISOLATION LEVEL {isolation};
            SELECT dq.done('{{\"id\": \"{}\", \"token\": {}}}')",
            leased.job.id, leased.token.0
        );
        caller.batch_execute(&done).await.unwrap();
        for _ in 0..2 {
            assert_eq!(claim_as(&backend, 9, "other").await.len(), 0, "its group is full");
        }
        caller.batch_execute("COMMIT").await.unwrap();
        assert_eq!(claim_as(&backend, 9, "other").await.len(), 1, "after {isolation}");
    }
}

/// Another settlement commits only after the parked job has been claimed.
#[tokio::test]
async fn a_waiting_worker_does_not_poll_for_jobs_that_are_no_longer_parked() {
    let url = database().await;
    let backend = connect(&url).await;
    declare(&backend, Flow::UNLIMITED.max_running(2).group_max_running(1)).await;
    schedule(&backend, "a", 2).await;
    schedule(&backend, "b", 1).await;
    let leased = claim_as(&backend, 9, "first").await;
    let caller = client(&url).await;
    let done = |leased: &LeasedJob| {
        format!(
            "SELECT dq.done('{{\"id\": \"{}\", \"token\": {}}}')",
            leased.job.id, leased.token.0
        )
    };
    caller.batch_execute(&format!("BEGIN; {}", done(&leased[1]))).await.unwrap();
    settle(&backend, &leased[..1], Verdict::Done).await;
    assert_eq!(claim_as(&backend, 9, "first").await.len(), 1, "the parked job");
    caller.batch_execute("COMMIT").await.unwrap();
    assert_eq!(parked(&url).await.0, 0);
    schedule(&backend, "c", 2).await;
    assert_eq!(claim_as(&backend, 9, "first").await.len(), 1, "the queue is full again");
    let wants = [Want::new(queue(), 9, LEASE)];
    for _ in 0..3 {
        let claimed = backend.claim(ClaimParams::new(&wants, 9, "other")).await.unwrap();
        let pause = claimed.next_due.unwrap().as_millis() - claimed.now.as_millis();
        assert!(pause > 1_000, "it polls again after {pause} ms");
    }
}

/// How many jobs are parked, in fact and by the gate, and how many workers wait in the line.
async fn parked(url: &str) -> (i64, i64, i32) {
    let counts = "SELECT (SELECT count(*) FROM dq.job WHERE state = -1), parked, cardinality(line)
        FROM dq.gate ORDER BY n DESC LIMIT 1";
    let row = client(url).await.query_one(counts, &[]).await.unwrap();
    (row.get(0), row.get(1), row.get(2))
}

/// Nobody subtracts purged jobs. A line would call its workers for nothing.
#[tokio::test]
async fn nobody_waits_in_the_line_after_a_purge_of_parked_jobs() {
    let url = database().await;
    let backend = connect(&url).await;
    declare(&backend, Flow::UNLIMITED.group_max_running(1)).await;
    schedule(&backend, "a", 3).await;
    claim(&backend, 9).await;
    claim_as(&backend, 9, "other").await;
    assert_eq!(parked(&url).await, (2, 2, 2));
    backend.operate(Operation::Purge { queue: &queue() }).await.unwrap();
    wait_until("a walk finds no parked job", async || {
        claim_as(&backend, 9, "other").await;
        parked(&url).await == (0, 0, 0)
    })
    .await;
}

#[tokio::test]
async fn a_removed_limit_returns_a_thousand_jobs_a_claim() {
    let url = database().await;
    let backend = connect(&url).await;
    declare(&backend, Flow::UNLIMITED.group_max_running(1)).await;
    for _ in 0..3 {
        schedule(&backend, "a", 750).await;
        schedule(&backend, "b", 50).await;
    }
    while parked_or_zero(&url).await < 2_398 {
        claim(&backend, 9).await;
    }
    declare(&backend, Flow::UNLIMITED).await;
    for left in [1_398, 398, 0] {
        let claimed = claim(&backend, 1).await;
        assert_eq!(claimed.jobs.len(), 1);
        assert_eq!(parked(&url).await.0, left);
        let soon = claimed.now + Duration::from_millis(1);
        assert!(claimed.next_due.is_some_and(|due| due <= soon), "{claimed:?}");
    }
    claim(&backend, 1).await;
    assert_eq!(parked(&url).await.1, 0);
}

async fn parked_or_zero(url: &str) -> i64 {
    let count = "SELECT count(*) FROM dq.job WHERE state = -1";
    client(url).await.query_one(count, &[]).await.unwrap().get(0)
}

/// Also with thousands of groups, a claim looks at few of them.
#[tokio::test]
async fn a_claim_looks_at_a_hundred_groups() {
    let url = database().await;
    let backend = connect(&url).await;
    declare(&backend, Flow::UNLIMITED.group_max_running(1)).await;
    for _ in 0..2 {
        let jobs = (0..250).map(|n| job(Due::NOW).group(format!("{n:03}")));
        backend.schedule(jobs.collect()).await.unwrap();
    }
    while parked_or_zero(&url).await < 250 {
        claim(&backend, 500).await;
    }
    let client = client(&url).await;
    let walk = async || -> String {
        let walk = "SELECT walk FROM dq.gate ORDER BY n DESC LIMIT 1";
        client.query_one(walk, &[]).await.unwrap().get(0)
    };
    let begin = "INSERT INTO dq.gate SELECT q, n + 1, used, line, seen, parked, read_to, '', 1
        FROM dq.gate ORDER BY n DESC LIMIT 1";
    client.batch_execute(begin).await.unwrap();
    assert_eq!(claim(&backend, 500).await.jobs.len(), 0);
    assert_eq!(walk().await, "099");
    declare(&backend, Flow::UNLIMITED.group_max_running(2)).await;
    for (started, group) in [(100, "099"), (100, "199"), (50, "")] {
        assert_eq!(claim(&backend, 500).await.jobs.len(), started);
        assert_eq!(walk().await, group);
    }
}

/// A late renewal locks the job first and then the gate. So a change of limits, which has the gate,
/// must not wait for the job; nor does a claim, and the group's room stays.
#[tokio::test]
async fn a_locked_parked_job_stops_nobody_and_returns_later() {
    let url = database().await;
    let backend = connect(&url).await;
    let holder = client(&url).await;
    for flow in [Flow::UNLIMITED.group_max_running(1), Flow::UNLIMITED] {
        declare(&backend, Flow::UNLIMITED.group_max_running(2)).await;
        schedule(&backend, "a", 3).await;
        let leased = claim(&backend, 9).await.jobs;
        assert_eq!(leased.len(), 2);
        holder
            .batch_execute("BEGIN; SELECT FROM dq.job WHERE state = -1 FOR UPDATE")
            .await
            .unwrap();
        declare(&backend, flow).await;
        settle(&backend, &leased, Verdict::Done).await;
        assert_eq!(claim(&backend, 9).await.jobs.len(), 0, "it is locked");
        let gate = "SELECT pg_advisory_xact_lock(dq.lock_key('dq.gate', q)) FROM dq.flow; ROLLBACK";
        holder.batch_execute(gate).await.unwrap();
        let returned = poll("a walk", async || claim(&backend, 9).await.jobs.pop()).await;
        settle(&backend, &[returned], Verdict::Done).await;
    }
}

/// Walks come to a group later, if there are thousands.
#[tokio::test]
async fn a_note_outlives_a_lock_of_the_first_parked_job() {
    let url = database().await;
    let backend = connect(&url).await;
    let client = client(&url).await;
    declare(&backend, Flow::UNLIMITED.group_max_running(1)).await;
    schedule(&backend, "a", 2).await;
    let leased = claim(&backend, 9).await.jobs;
    client.batch_execute("BEGIN; SELECT FROM dq.job WHERE state = -1 FOR UPDATE").await.unwrap();
    settle(&backend, &leased, Verdict::Done).await;
    assert_eq!(claim(&backend, 9).await.jobs.len(), 0, "it is locked");
    let noted = "SELECT DISTINCT grp FROM dq.note WHERE at = 0";
    assert_eq!(client.query_one(noted, &[]).await.unwrap().get::<_, String>(0), "a");
}

/// A claim would else take the place of a lease that it does not see renewed.
#[tokio::test]
async fn a_renewal_waits_for_a_claim_and_is_late_after_the_expiry() {
    let url = database().await;
    for flow in [Flow::UNLIMITED.max_running(1), Flow::UNLIMITED.group_max_running(1)] {
        let backend = connect(&url).await;
        declare(&backend, flow).await;
        schedule(&backend, "a", 1).await;
        let wants = [Want::new(queue(), 1, Duration::from_millis(300))];
        let claimed = backend.claim(ClaimParams::new(&wants, 1, "test")).await.unwrap().jobs;
        let claiming = client(&url).await;
        let gate = "SELECT pg_advisory_lock(dq.lock_key('dq.gate', q)) FROM dq.flow";
        claiming.batch_execute(gate).await.unwrap();
        let renewals = [Renewal::new(claimed[0].lease(), LEASE)];
        let (renewed, ()) = tokio::join!(backend.renew(&renewals), async {
            wait_until("the lease expires", async || {
                let expired = "SELECT at <= dq.now_ms() FROM dq.job WHERE state = 1";
                claiming.query_one(expired, &[]).await.unwrap().get(0)
            })
            .await;
            claiming.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
        });
        assert_eq!(renewed.unwrap(), [Renewed::LostLease]);
        settle(&backend, &claim(&backend, 1).await.jobs, Verdict::Done).await;
    }
}

/// As if the note of a settlement were lost, and the notification with it. A claim looks for parked
/// jobs after a second, or after 50 times as long as looking took.
#[tokio::test]
async fn parked_jobs_return_without_a_note() {
    let url = database().await;
    let backend = connect(&url).await;
    declare(&backend, Flow::UNLIMITED.group_max_running(1)).await;
    schedule(&backend, "a", 2).await;
    let mut slowest = Duration::ZERO;
    let mut timed_claim = async || {
        let begin = Instant::now();
        let claimed = claim(&backend, 9).await;
        slowest = slowest.max(begin.elapsed());
        (claimed, slowest)
    };
    let leased = timed_claim().await.0.jobs;
    assert_eq!(leased.len(), 1);
    // This claim looks for parked jobs.
    assert!(timed_claim().await.0.jobs.is_empty());
    settle(&backend, &leased, Verdict::Done).await;
    let notes = client(&url).await.execute("DELETE FROM dq.note", &[]).await.unwrap();
    assert_ne!(notes, 0);
    wait_until("the parked job runs", async || {
        let (claimed, slowest) = timed_claim().await;
        let latest = claimed.now + Duration::from_secs(1).max(50 * slowest) + slowest;
        let again = claimed.next_due.is_some_and(|next| next <= latest);
        assert!(again || claimed.jobs.len() == 1, "{claimed:?}");
        !claimed.jobs.is_empty()
    })
    .await;
}
