//! Every call of a backend, to find out which rights it needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dq_core::{
    Backend, BrowseParams, Cancelled, DeadKind, DeadReason, Due, JobRef, JobState, Operation,
    Renewal, Settled, Settlement, Verdict, Wakeups,
};
use dq_servers::Redis;

use crate::faults::fixture::{by_id, claim, done_settlements, in_an_hour, job, keyed, queue};

const HOUR: Duration = Duration::from_secs(3_600);

macro_rules! demand {
    ($holds:expr, $what:literal) => {
        if !$holds {
            return Err($what.to_owned());
        }
    };
}

fn new_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    format!("flow{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn message(error: dq_core::Error) -> String {
    error.to_string()
}

/// Makes every call common to all backends, on a new queue. Waits at most `max_wait` per wake-up.
/// The error names the failed call.
pub(crate) async fn whole_flow(
    backend: &Arc<dyn Backend>,
    max_wait: Duration,
) -> Result<(), String> {
    let name = new_name();
    let (queue, name) = (queue(&name), name.as_str());
    let by_key = |key| JobRef::new(queue.clone(), dq_core::JobKey::new(key).expect("a key"));

    backend.now().await.map_err(message)?;
    let mut wakeups = backend.listen(std::slice::from_ref(&queue)).await.map_err(message)?;
    // A new subscription is itself a wake-up.
    demand!(is_woken(&mut wakeups, max_wait).await, "it does not listen");
    // Above 8192 bytes, later claims check record sizes, which takes another command.
    let (first, waits, dies) = (keyed(name, "k"), in_an_hour(job(name)), keyed(name, "dies"));
    let large = job(name).payload(vec![b'x'; 9_000]);
    let jobs = vec![first, waits.clone(), dies, large];
    backend.schedule(jobs).await.map_err(message)?;
    // A late subscription is one more wake-up.
    let hint = async { while wakeups.next().await.due.as_millis() <= 0 {} };
    demand!(tokio::time::timeout(max_wait, hint).await.is_ok(), "no wake-up");
    let view = backend.get(&by_key("k")).await.map_err(message)?;
    demand!(view.is_some(), "not found by its key");
    let mut page = BrowseParams::new(&queue, JobState::Ready).limit(1).payloads(true);
    page.after = backend.browse(page).await.map_err(message)?.next;
    demand!(backend.browse(page).await.map_err(message)?.jobs.len() == 1, "no second page");
    let moves = [dq_core::Reschedule { job: by_id(&waits), due: Due::After(HOUR) }];
    backend.reschedule(&moves).await.map_err(message)?;
    let cancelled = backend.cancel(&[by_id(&waits)]).await.map_err(message)?;
    demand!(cancelled == [Cancelled::Cancelled], "not cancelled");

    let claimed = claim(&**backend, &[name], 9).await.map_err(message)?;
    demand!(claimed.jobs.len() == 3, "not claimed");
    let view = backend.get(&by_key("k")).await.map_err(message)?;
    demand!(view.is_some_and(|view| view.state == JobState::Running), "not found while it runs");
    let renewals: Vec<_> =
        claimed.jobs.iter().map(|leased| Renewal::new(leased.lease(), HOUR)).collect();
    backend.renew(&renewals).await.map_err(message)?;
    let mut settlements: Vec<Settlement> = done_settlements(&claimed);
    for (settlement, leased) in settlements.iter_mut().zip(&claimed.jobs) {
        if leased.job.key.is_some() {
            let reason = DeadReason::new(DeadKind::Rejected, "no");
            settlement.verdict = Verdict::Dead { reason, failed: true };
        }
    }
    let settled = backend.settle(&settlements).await.map_err(message)?;
    demand!(settled == [Settled::Accepted; 3], "not settled");
    for operation in [
        Operation::Replay {
            queue: &queue,
            jobs: &dq_testkit::fixture::dead_ids(&**backend, &queue).await[..],
            due: Due::NOW,
        },
        Operation::Pause { queue: &queue },
        Operation::Resume { queue: &queue },
        Operation::Purge { queue: &queue },
    ] {
        backend.operate(operation).await.map_err(message)?;
    }
    let all = backend.stats(&[]).await.map_err(message)?;
    let totals = all.iter().find(|stats| stats.queue == queue).and_then(|stats| stats.totals);
    let has_totals = backend.capabilities().totals;
    demand!(!has_totals || totals.is_some_and(|totals| totals.created == 4), "not counted");
    demand!(all.iter().any(|stats| stats.queue == queue), "not listed");
    let unreachable = backend.check().await.into_iter().find(|it| it.code == "redis.unreachable");
    unreachable.map_or(Ok(()), |finding| Err(finding.cause))
}

async fn is_woken(wakeups: &mut Wakeups, max_wait: Duration) -> bool {
    tokio::time::timeout(max_wait, wakeups.next()).await.is_ok()
}

/// Makes the Redisson backend's own calls, with `java_visibility=approximate` and
/// `java_visibility=exact`. Server commands replace Java's clients.
pub(crate) async fn flow_beside_java(
    redis: &Redis,
    approximate: &Arc<dyn Backend>,
    exact: &Arc<dyn Backend>,
    max_wait: Duration,
) -> Result<(), String> {
    let name = new_name();
    let queue = queue(&name);
    let timeout = format!("redisson_delay_queue_timeout:{{{name}}}");
    let order = format!("redisson_delay_queue:{{{name}}}");
    let mut wakeups = approximate.listen(std::slice::from_ref(&queue)).await.map_err(message)?;
    while tokio::time::timeout(Duration::from_millis(20), wakeups.next()).await.is_ok() {}
    redis.command(&["RPUSH", &name, "\"direct\""]);
    demand!(is_woken(&mut wakeups, max_wait).await, "the destination list is not watched");
    let claimed = claim(&**approximate, &[&name], 9).await.map_err(message)?;
    demand!(claimed.jobs.len() == 1, "not claimed from the destination list");
    approximate.settle(&done_settlements(&claimed)).await.map_err(message)?;

    // A job scheduled by Java (a Redisson member: id length, id, payload length, payload) is found
    // by its id.
    let member = b"\x08\0\0\0\0\0\0\0\x01\x01\0\0\0\0\0\0\0x";
    redis.command_bytes(&[b"ZADD", timeout.as_bytes(), b"9000000000000", member]);
    redis.command_bytes(&[b"RPUSH", order.as_bytes(), member]);
    let id = dq_core::JobId::from_bytes(*b"\0\0\0\0\0\0\0\x01redisson");
    let view = approximate.get(&JobRef::new(queue.clone(), id)).await.map_err(message)?;
    demand!(view.is_some(), "not found by its id");
    approximate.schedule(vec![job(&name)]).await.map_err(message)?;
    // The claimed job leaves the order list too.
    let claimed = claim(&**approximate, &[&name], 9).await.map_err(message)?;
    demand!(
        claimed.jobs.len() == 1 && redis.command(&["LLEN", &order]).int() == 1,
        "left in the order list"
    );
    // Java takes a job with an index entry: the next call removes the entry.
    approximate.schedule(vec![keyed(&name, "taken")]).await.map_err(message)?;
    redis.command(&["DEL", &timeout]);
    approximate.schedule(vec![in_an_hour(job(&name))]).await.map_err(message)?;

    exact.schedule(vec![job(&name)]).await.map_err(message)?;
    let claimed = claim(&**exact, &[&name], 1).await.map_err(message)?;
    demand!(claimed.jobs.len() == 1, "not claimed in exact");
    approximate.operate(Operation::Purge { queue: &queue }).await.map_err(message)?;
    demand!(redis.command(&["EXISTS", &order]).int() == 0, "the order list is left");
    Ok(())
}

pub(crate) async fn flow_with_expiry(backend: &Arc<dyn Backend>) -> Result<(), String> {
    let findings = backend.check().await;
    let problem = findings.into_iter().find(|finding| finding.code.starts_with("redis-expiry."));
    problem.map_or(Ok(()), |finding| Err(finding.cause))
}
