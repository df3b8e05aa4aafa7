//! Every call of a backend, for the tests of rights. The functions panic if a call fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dq_core::{
    Backend, BrowseParams, Cancelled, ClaimParams, Due, Flow, JobId, JobRef, JobState, Operation,
    Renewal, Reschedule, Settled, Settlement, Verdict, Want,
};
use dq_servers::Redis;

use crate::common::{HOUR, at_most, by_key, dead, declare, purge, replay_all, settle};
use crate::faults::fixture::{by_id, claim, done_settlements, in_an_hour, job, keyed, queue};

fn new_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("flow{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Uses a new queue. Waits at most `max_wait` per wake-up.
pub(crate) async fn whole_flow(backend: &Arc<dyn Backend>, max_wait: Duration) {
    let name = new_name();
    let (queue, name) = (queue(&name), name.as_str());

    backend.now().await.unwrap();
    let mut wakeups = backend.listen(std::slice::from_ref(&queue), "test").await.unwrap();
    // A new subscription is itself a wake-up.
    tokio::time::timeout(max_wait, wakeups.next()).await.expect("a wake-up");
    // Above 8192 bytes, later claims check record sizes, which takes another command.
    let (first, waits, dies) = (keyed(name, "k"), in_an_hour(job(name)), keyed(name, "dies"));
    let large = job(name).payload(vec![b'x'; 9_000]);
    backend.schedule(vec![first, waits.clone(), dies, large]).await.unwrap();
    let hint = async { while wakeups.next().await.due.as_millis() <= 0 {} };
    tokio::time::timeout(max_wait, hint).await.expect("a wake-up");
    assert!(backend.get(&by_key(&queue, "k")).await.unwrap().is_some());
    let mut page = BrowseParams::new(&queue, JobState::Ready).limit(1).payloads(true);
    page.after = backend.browse(page).await.unwrap().next;
    assert_eq!(backend.browse(page).await.unwrap().jobs.len(), 1, "the second page");
    let moved = Reschedule { job: by_id(&waits), due: Due::After(HOUR) };
    backend.reschedule(&[moved]).await.unwrap();
    assert_eq!(backend.cancel(&[by_id(&waits)]).await.unwrap(), [Cancelled::Cancelled]);

    let claimed = claim(&**backend, &[name], 9).await.unwrap();
    assert_eq!(claimed.jobs.len(), 3);
    let running = backend.get(&by_key(&queue, "k")).await.unwrap().unwrap();
    assert_eq!(running.state, JobState::Running);
    let renewal = |leased: &dq_core::LeasedJob| Renewal::new(leased.lease(), HOUR);
    backend.renew(&claimed.jobs.iter().map(renewal).collect::<Vec<_>>()).await.unwrap();
    let mut settlements: Vec<Settlement> = done_settlements(&claimed);
    for (settlement, leased) in settlements.iter_mut().zip(&claimed.jobs) {
        if leased.job.key.is_some() {
            settlement.verdict = dead();
        }
    }
    assert_eq!(backend.settle(&settlements).await.unwrap(), [Settled::Accepted; 3]);

    replay_all(&**backend, &queue).await;
    backend.operate(Operation::Pause { queue: &queue }).await.unwrap();
    backend.operate(Operation::Resume { queue: &queue }).await.unwrap();
    let has_limits = backend.capabilities().flow;
    if has_limits {
        flow_with_limits(&**backend, name).await;
    }
    purge(&**backend, &queue).await;
    let all = backend.stats(&[]).await.unwrap();
    let stats = all.iter().find(|stats| stats.queue == queue).expect("the queue is listed");
    assert!(
        stats.totals.is_none_or(|totals| totals.created == 4 + 3 * u64::from(has_limits)),
        "{stats:?}"
    );
    let findings = backend.check().await;
    assert!(findings.iter().all(|found| found.code != "redis.unreachable"), "{findings:?}");
}

/// Two workers wait for room in the queue, which has two due jobs at least.
async fn flow_with_limits(backend: &dyn Backend, name: &str) {
    let queue = queue(name);
    let limits = at_most(1).group_max_running(1).rate("1000/1s".parse().unwrap());
    declare(backend, &queue, limits).await;
    backend.schedule(vec![job(name)]).await.unwrap();
    let first = claim(backend, &[name], 9).await.unwrap();
    assert_eq!(first.jobs.len(), 1);
    for worker in ["one", "two"] {
        let wants = [Want::new(queue.clone(), 9, HOUR)];
        backend.claim(ClaimParams::new(&wants, 9, worker)).await.unwrap();
    }
    for verdict in [Verdict::Release { started: false }, Verdict::Throttle(Due::NOW)] {
        let claimed = claim(backend, &[name], 9).await.unwrap();
        let leased = claimed.jobs.first().unwrap_or(&first.jobs[0]);
        settle(backend, leased, verdict).await;
    }
    declare(backend, &queue, Flow::UNLIMITED.group_max_running(1)).await;
    backend.schedule(vec![job(name).group("a"), job(name).group("a")]).await.unwrap();
    for _ in 0..2 {
        let claimed = claim(backend, &[name], 9).await.unwrap();
        backend.settle(&done_settlements(&claimed)).await.unwrap();
    }
    let resume = Operation::Resume { queue: &queue };
    backend.operate(resume).await.unwrap();
    declare(backend, &queue, Flow::UNLIMITED).await;
}

/// Makes the Redisson backend's own calls. Server commands replace Java's clients.
pub(crate) async fn flow_beside_java(
    redis: &Redis,
    approximate: &Arc<dyn Backend>,
    exact: &Arc<dyn Backend>,
    max_wait: Duration,
) {
    let name = new_name();
    let queue = queue(&name);
    let timeout = format!("redisson_delay_queue_timeout:{{{name}}}");
    let order = format!("redisson_delay_queue:{{{name}}}");
    let claim_one = async |backend: &Arc<dyn Backend>| {
        let claimed = claim(&**backend, &[&name], 9).await.unwrap();
        assert_eq!(claimed.jobs.len(), 1);
        claimed
    };

    // The destination list is watched.
    let mut wakeups = approximate.listen(std::slice::from_ref(&queue), "test").await.unwrap();
    while tokio::time::timeout(Duration::from_millis(20), wakeups.next()).await.is_ok() {}
    redis.command(&["RPUSH", &name, "\"direct\""]);
    tokio::time::timeout(max_wait, wakeups.next()).await.expect("a wake-up");
    let claimed = claim_one(approximate).await;
    approximate.settle(&done_settlements(&claimed)).await.unwrap();

    // A job scheduled by Java (a Redisson member: id length, id, payload length, payload) is found
    // by its id.
    let member = b"\x08\0\0\0\0\0\0\0\x01\x01\0\0\0\0\0\0\0x";
    redis.command_bytes(&[b"ZADD", timeout.as_bytes(), b"9000000000000", member]);
    redis.command_bytes(&[b"RPUSH", order.as_bytes(), member]);
    let id = JobId::from_bytes(*b"\0\0\0\0\0\0\0\x01redisson");
    assert!(approximate.get(&JobRef::new(queue.clone(), id)).await.unwrap().is_some());
    // A claimed job leaves the order list, too.
    approximate.schedule(vec![job(&name)]).await.unwrap();
    claim_one(approximate).await;
    assert_eq!(redis.command(&["LLEN", &order]).int(), 1);
    // Java takes a job with an index entry: the next call removes the entry.
    approximate.schedule(vec![keyed(&name, "taken")]).await.unwrap();
    redis.command(&["DEL", &timeout]);
    approximate.schedule(vec![in_an_hour(job(&name))]).await.unwrap();

    exact.schedule(vec![job(&name)]).await.unwrap();
    claim_one(exact).await;
    purge(&**approximate, &queue).await;
    assert_eq!(redis.command(&["EXISTS", &order]).int(), 0);
}

pub(crate) async fn flow_with_expiry(backend: &Arc<dyn Backend>) {
    let findings = backend.check().await;
    assert!(!findings.iter().any(|found| found.code.starts_with("redis-expiry.")), "{findings:?}");
}
