//! Calls that meet another transaction's changes.

use std::time::Duration;

use dq_core::{
    Backend, Cancelled, ClaimParams, Due, Flow, JobKey, JobRef, LeasedJob, NewJob, OnConflict,
    Operation, QueueName, Renewal, Scheduled, Settlement, Target, Verdict, Want,
};
use dq_postgres::PostgresBackend;
use dq_servers::Postgres;
use dq_testkit::fixture::{blocking, wait_until};

use crate::common::{LEASE, claim, client, connect, database, job, queue};

/// The cancel waits for the old job, whose replacement it did not see at first.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_meets_a_replacement_cancels_the_new_job() {
    let url = database().await;
    let backend = connect(&url).await;
    let key = JobKey::new("order-17").unwrap();
    backend.schedule(vec![job(Due::NOW).key(key.clone())]).await.unwrap();
    let replacing = client(&url).await;
    replacing
        .batch_execute(
            "BEGIN; SELECT dq.schedule('orders', '1', now(), key => 'order-17', \
             on_conflict => 'replace')",
        )
        .await
        .unwrap();
    let target = [JobRef::new(queue(), Target::Key(key))];
    let (cancelled, committed) = tokio::join!(backend.cancel(&target), async {
        // The cancel is waiting for the lock by then; earlier, the test only shows less.
        tokio::time::sleep(Duration::from_millis(300)).await;
        replacing.batch_execute("COMMIT").await
    });
    committed.unwrap();
    assert_eq!(cancelled.unwrap(), [Cancelled::Cancelled]);
    assert_eq!(claim(&backend, 10).await.jobs.len(), 0);
}

/// The repeated call waits for the settlement of its job, with which another job gets the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_call_replaces_no_job_when_its_own_ends_meanwhile() {
    let url = database().await;
    let backend = connect(&url).await;
    let key = JobKey::new("order-17").unwrap();
    let mut first = job(Due::NOW).key(key.clone()).on_conflict(OnConflict::Replace);
    first.remember = LEASE;
    backend.schedule(vec![first.clone()]).await.unwrap();
    let lease = claim(&backend, 1).await.jobs[0].lease();
    let settling = client(&url).await;
    let lock = format!("BEGIN; SELECT FROM dq.job WHERE id = '{}' FOR UPDATE", first.id);
    settling.batch_execute(&lock).await.unwrap();
    let settle = format!(
        "SELECT dq.settle(ARRAY['{}'::uuid], ARRAY[{}::bigint], ARRAY[0], null, null, null, null, null, null);
        SELECT dq.schedule('orders', '1', now() + interval '1 hour', key => 'order-17');
        COMMIT",
        first.id, lease.token.0,
    );
    let (repeated, settled) = tokio::join!(backend.schedule(vec![first]), async {
        wait_until("the call waits", async || {
            client(&url).await.query_one(WAITING, &[]).await.unwrap().get::<_, i64>(0) == 1
        })
        .await;
        settling.batch_execute(&settle).await
    });
    settled.unwrap();
    let repeated = repeated.unwrap();
    assert!(matches!(repeated[..], [Scheduled::Ended(_)]), "{repeated:?}");
    let other = backend.get(&JobRef::new(queue(), Target::Key(key))).await.unwrap();
    assert!(other.is_some(), "the other job was replaced");
}

/// Counts calls that wait for a lock.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'";

const DEADLOCK: &str = "deadlock detected";

/// A server that finds deadlocks at once, and logs them.
async fn server_that_finds_deadlocks() -> Postgres {
    blocking(|| Postgres::options().set("deadlock_timeout", "10ms").start()).await
}

/// While the first job is locked, a call waits for it and has locked no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settlements_and_renewals_lock_in_one_order() {
    let url = database().await;
    let backend = connect(&url).await;
    let (holder, other) = (client(&url).await, client(&url).await);
    // In a small table, plans read all jobs in the order of their ids.
    for _ in 0..5 {
        let later = Due::After(LEASE * 100);
        backend.schedule((0..1_000).map(|_| job(later)).collect()).await.unwrap();
    }
    holder.batch_execute("ANALYZE dq.job").await.unwrap();
    let retry = Verdict::retry(Due::NOW, "failed");
    for verdict in [None, Some(Verdict::Done), Some(Verdict::Snooze(Due::NOW)), Some(retry)] {
        backend.schedule((0..20).map(|_| job(Due::NOW)).collect()).await.unwrap();
        let mut claimed = claim(&backend, 20).await.jobs;
        // The caller's order is the reverse.
        claimed.sort_by_key(|leased| std::cmp::Reverse(leased.job.id));
        let leases = claimed.iter().map(LeasedJob::lease);
        let call = async {
            match &verdict {
                None => {
                    let renewals: Vec<_> = leases.map(|lease| Renewal::new(lease, LEASE)).collect();
                    backend.renew(&renewals).await.map(drop)
                }
                Some(verdict) => {
                    let settle = |lease| Settlement::new(lease, verdict.clone());
                    let settlements: Vec<_> = leases.map(settle).collect();
                    backend.settle(&settlements).await.map(drop)
                }
            }
        };
        let first = claimed[19].job.id;
        let hold = format!("BEGIN; SELECT FROM dq.job WHERE id = '{first}' FOR UPDATE");
        holder.batch_execute(&hold).await.unwrap();
        let (called, ()) = tokio::join!(call, async {
            wait_until("the call waits", async || {
                other.query_one(WAITING, &[]).await.unwrap().get::<_, i64>(0) == 1
            })
            .await;
            let others =
                format!("SELECT FROM dq.job WHERE state = 1 AND id <> '{first}' FOR UPDATE NOWAIT");
            other.batch_execute(&others).await.unwrap_or_else(|e| panic!("{verdict:?}: {e}"));
            holder.batch_execute("COMMIT").await.unwrap();
        });
        called.unwrap();
        holder.batch_execute("DELETE FROM dq.job WHERE due <= dq.now_ms()").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_with_the_same_keys_lock_in_one_order() {
    let postgres = server_that_finds_deadlocks().await;
    let (first, second) = (connect(&postgres.url()).await, connect(&postgres.url()).await);
    let batch = || {
        let new = |i| job(Due::NOW).key(JobKey::new(format!("k{i}")).unwrap());
        let jobs = (0..100).map(new).map(|job| job.on_conflict(OnConflict::Replace));
        jobs.collect::<Vec<_>>()
    };
    for _ in 0..30 {
        let mut reversed = batch();
        reversed.reverse();
        let (forth, back) = tokio::join!(first.schedule(batch()), second.schedule(reversed));
        forth.unwrap();
        back.unwrap();
        // The next round begins with new keys.
        let ids = claim(&first, 100).await.jobs.into_iter();
        let done: Vec<_> = ids.map(|job| Settlement::new(job.lease(), Verdict::Done)).collect();
        first.settle(&done).await.unwrap();
    }
    assert!(!postgres.log().contains(DEADLOCK));
}

/// Claims lock two limited queues in either order, settlements change both limits' states.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_limited_queues_lock_in_one_order() {
    let postgres = server_that_finds_deadlocks().await;
    let (first, second) = (connect(&postgres.url()).await, connect(&postgres.url()).await);
    let other = QueueName::new("others").unwrap();
    for queue in [&queue(), &other] {
        let flow = Flow::UNLIMITED.max_running(5).rate("10000/1s burst 5".parse().unwrap());
        first.operate(Operation::DeclareFlow { queue, flow }).await.unwrap();
        let in_queue = |mut job: NewJob| {
            job.queue = queue.clone();
            job
        };
        first.schedule((0..200).map(|_| in_queue(job(Due::NOW))).collect()).await.unwrap();
    }
    let run = async |store: &PostgresBackend, queues: [&QueueName; 2]| {
        for round in 0..60 {
            let wants = queues.map(|queue| Want::new(queue.clone(), 3, LEASE));
            let claimed = store.claim(ClaimParams::new(&wants, 6, "test")).await.unwrap().jobs;
            let verdicts =
                [Verdict::Release { started: false }, Verdict::Throttle(Due::NOW), Verdict::Done];
            let settlement = |(n, leased): (usize, &LeasedJob)| {
                Settlement::new(leased.lease(), verdicts[(round + n) % 3].clone())
            };
            let settlements: Vec<_> = claimed.iter().enumerate().map(settlement).collect();
            store.settle(&settlements).await.unwrap();
        }
    };
    let (queue, other) = (&queue(), &other);
    tokio::join!(run(&first, [queue, other]), run(&second, [other, queue]));
    assert!(!postgres.log().contains(DEADLOCK));
}

/// The claim has looked at the queue's leases before the other one takes a shorter lease, and
/// replies after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_reply_does_not_hide_a_shorter_lease() {
    let url = database().await;
    let backend = connect(&url).await;
    let slow = QueueName::new("slow").unwrap();
    let mut in_slow = job(Due::NOW);
    in_slow.queue = slow.clone();
    // The other queue exists.
    backend.schedule(vec![in_slow, job(Due::After(LEASE * 10))]).await.unwrap();
    let client = client(&url).await;
    client
        .batch_execute(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                PERFORM pg_advisory_xact_lock(1);
                RETURN NEW;
            END $$;
            CREATE TRIGGER wait BEFORE UPDATE ON dq.job
                FOR EACH ROW WHEN (NEW.worker = 'slow') EXECUTE FUNCTION wait();
            SELECT pg_advisory_lock(1)",
        )
        .await
        .unwrap();
    let wants = [Want::new(queue(), 1, LEASE), Want::new(slow, 1, LEASE)];
    let claims_late = backend.claim(ClaimParams::new(&wants, 2, "slow"));
    let claims_meanwhile = async {
        let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        wait_until("the claim waits", async || {
            client.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) == 1
        })
        .await;
        backend.schedule(vec![job(Due::NOW)]).await.unwrap();
        let wants = [Want::new(queue(), 1, LEASE / 3)];
        let claimed = backend.claim(ClaimParams::new(&wants, 1, "short")).await.unwrap();
        client.batch_execute("SELECT pg_advisory_unlock(1)").await.unwrap();
        claimed.jobs[0].leased_until
    };
    let (late, expiry) = tokio::join!(claims_late, claims_meanwhile);
    assert_eq!(late.unwrap().jobs.len(), 1);
    assert_eq!(claim(&backend, 1).await.next_due, Some(expiry));
}
