//! The rights that the documentation of the crate lists suffice, and none of them is too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dq_core::{
    Backend, BrowseParams, Cancelled, DeadKind, DeadReason, Due, ErrorKind, JobRef, JobState,
    NewJob, Operation, Renewal, Settled, Settlement, Verdict,
};
use dq_servers::{Redis, RedisCluster};

use crate::stand::{by_id, claim, connect, done, found, job, keyed, later, open, queue, refused};

/// The line of the documentation, as it stands there.
fn documented() -> Vec<String> {
    let lines = include_str!("../../src/lib.rs").lines();
    let text: Vec<&str> = lines.filter_map(|line| line.strip_prefix("//!")).collect();
    let text = text.join("\n");
    let (_, rest) = text.split_once("ACL SETUSER").expect("the line is there");
    let (line, _) = rest.split_once("```").expect("the line ends");
    let words = line.split_whitespace().filter(|word| *word != "\\");
    ["ACL", "SETUSER"].into_iter().chain(words).map(str::to_owned).collect()
}

fn set_user(redis: &Redis, words: &[String]) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let answer = redis.command(&words);
    assert!(answer.is_ok(), "{answer:?}");
}

/// A server with the user of the documentation, and that user's URL.
fn prepare() -> (Redis, String) {
    let redis = Redis::start();
    let words = documented();
    set_user(&redis, &words);
    let password = words.iter().find_map(|word| word.strip_prefix('>')).expect("a password");
    let url = format!("redis://{}:{password}@{}/0", words[2], redis.address());
    (redis, url)
}

macro_rules! demand {
    ($fine:expr, $what:literal) => {
        if !$fine {
            return Err($what.to_owned());
        }
    };
}

/// Everything that the backend can do, on a queue of its own.
async fn whole_flow(backend: &Arc<dyn Backend>) -> Result<(), String> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("flow{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let (q, name) = (queue(&name), name.as_str());
    let told = |error: dq_core::Error| error.to_string();
    let hint = Duration::from_millis(500);
    let by_key = |key| JobRef::new(q.clone(), dq_core::JobKey::new(key).expect("a key"));

    backend.now().await.map_err(told)?;
    let mut wakeups = backend.listen(std::slice::from_ref(&q)).await.map_err(told)?;
    let connected = tokio::time::timeout(hint, wakeups.next()).await;
    demand!(connected.is_ok(), "it does not listen");
    let (first, waits, dies) = (keyed(name, "k"), later(job(name)), keyed(name, "dies"));
    let large = NewJob { payload: vec![b'x'; 9_000].into(), ..job(name) };
    let jobs = vec![first, waits.clone(), dies, large];
    backend.schedule(jobs).await.map_err(told)?;
    let next = tokio::time::timeout(hint, wakeups.next()).await;
    demand!(next.is_ok_and(|hint| hint.due.as_millis() > 0), "no hint");
    let view = backend.get(&by_key("k")).await.map_err(told)?;
    demand!(view.is_some(), "not found by its key");
    let mut page = BrowseParams { queue: &q, state: JobState::Ready, after: None, limit: 1 };
    page.after = backend.browse(page).await.map_err(told)?.next;
    demand!(backend.browse(page).await.map_err(told)?.jobs.len() == 1, "no second page");
    let to = [dq_core::Reschedule { job: by_id(&waits), due: Due::After(hint * 9_999) }];
    backend.reschedule(&to).await.map_err(told)?;
    let cancelled = backend.cancel(&[by_id(&waits)]).await.map_err(told)?;
    demand!(cancelled == [Cancelled::Cancelled], "not cancelled");

    let claimed = claim(&**backend, &[name], 9).await.map_err(told)?;
    demand!(claimed.jobs.len() == 3, "not claimed");
    let renewals: Vec<_> = claimed
        .jobs
        .iter()
        .map(|leased| Renewal { lease: leased.lease(), lease_for: hint })
        .collect();
    backend.renew(&renewals).await.map_err(told)?;
    let mut settlements: Vec<Settlement> = done(&claimed);
    for (settlement, leased) in settlements.iter_mut().zip(&claimed.jobs) {
        if leased.job.key.is_some() {
            let reason = DeadReason::new(DeadKind::Rejected, "no");
            settlement.verdict = Verdict::Dead { reason, failed: true };
        }
    }
    let settled = backend.settle(&settlements).await.map_err(told)?;
    demand!(settled == [Settled::Accepted; 3], "not settled");
    for operation in [
        Operation::Replay { queue: &q, jobs: None, due: Due::NOW },
        Operation::Pause { queue: &q },
        Operation::Resume { queue: &q },
        Operation::Purge { queue: &q },
    ] {
        backend.operate(operation).await.map_err(told)?;
    }
    let all = backend.stats(&[]).await.map_err(told)?;
    let totals = all.iter().find(|stats| stats.queue == q).and_then(|stats| stats.totals);
    demand!(totals.is_some_and(|totals| totals.created == 4), "not counted");
    let unreachable = backend.check().await.into_iter().find(|it| it.code == "redis.unreachable");
    unreachable.map_or(Ok(()), |finding| Err(finding.what))
}

#[tokio::test]
async fn the_rights_of_the_documentation_suffice() {
    let (redis, url) = prepare();
    let backend = open(&url).await;
    whole_flow(&backend).await.unwrap();
    // They are for these keys and channels only.
    let login = |user: &mut dq_servers::Connection| {
        let words = documented();
        let password = words.iter().find_map(|word| word.strip_prefix('>')).unwrap();
        assert!(user.command(&["AUTH", &words[2], password]).is_ok());
    };
    let mut user = redis.connect();
    login(&mut user);
    for words in [
        &["ZADD", "other", "1", "x"][..],
        &["PUBLISH", "other", "x"],
        &["FLUSHALL"],
        &["DEL", "{dq}:due:q"],
        &["CONFIG", "GET", "*"],
    ] {
        assert!(user.command(words).error().starts_with("NOPERM"), "{words:?}");
    }
}

#[tokio::test]
async fn each_right_is_needed() {
    let (redis, url) = prepare();
    let words = documented();
    let mut rights: Vec<&String> = words.iter().filter(|word| word.starts_with('+')).collect();
    assert!(rights.len() > 20, "{words:?}");
    // Sent after fifteen seconds without a message, for which no test waits.
    rights.retain(|right| *right != "+ping");
    let mut idle = Vec::new();
    for right in rights {
        set_user(&redis, &words);
        let backend = open(&url).await;
        redis.command(&["SCRIPT", "FLUSH"]);
        let user = &words[2];
        let without = right.replacen('+', "-", 1);
        set_user(&redis, &["ACL".into(), "SETUSER".into(), user.clone(), without]);
        if whole_flow(&backend).await.is_ok() {
            idle.push(right.as_str());
        }
        // Who starts without it is told so, unless only some calls need it.
        if !["+sadd", "+smembers", "+subscribe"].contains(&right.as_str()) {
            let answer = connect(&url).await;
            let error = refused(answer, ErrorKind::Config, &["NOPERM", "rights"]);
            let name = right.trim_start_matches('+');
            assert!(error.what().to_lowercase().contains(name), "{name}: {error}");
        }
    }
    assert!(idle.is_empty(), "nothing needs {idle:?}");
}

#[tokio::test]
async fn keys_and_channels_are_needed_too() {
    for (from, to, missing) in
        [("~{dq}:*", "~{other}:*", "keys"), ("&{dq}:", "&{other}:", "channels")]
    {
        let (redis, url) = prepare();
        let words: Vec<String> = documented().iter().map(|word| word.replace(from, to)).collect();
        assert_ne!(words, documented(), "{missing}");
        set_user(&redis, &words);
        refused(connect(&url).await, ErrorKind::Config, &["NOPERM", missing.trim_end_matches('s')]);
    }
    let (redis, url) = prepare();
    let backend = open(&url).await;
    redis.command(&["ACL", "SETUSER", &documented()[2], "off"]);
    redis.command(&["CLIENT", "KILL", "USER", &documented()[2]]);
    found(&backend.check().await, "redis.unreachable");
}

#[tokio::test]
async fn a_database_and_a_cluster_need_what_the_documentation_says() {
    let (redis, url) = prepare();
    let user = documented()[2].clone();
    let other = url.replace("/0", "/1");
    refused(connect(&other).await, ErrorKind::Config, &["select", "rights"]);
    redis.command(&["ACL", "SETUSER", &user, "+select"]);
    whole_flow(&open(&other).await).await.unwrap();

    let cluster = RedisCluster::start(3);
    for node in cluster.nodes() {
        set_user(node, &documented());
    }
    let (who, _) = url.strip_prefix("redis://").and_then(|url| url.split_once('@')).unwrap();
    let url = format!("redis+cluster://{who}@{}", cluster.nodes()[0].address());
    connect(&url).await.expect_err("it cannot ask for the slots");
    for node in cluster.nodes() {
        node.command(&["ACL", "SETUSER", &user, "+cluster|slots"]);
    }
    whole_flow(&open(&url).await).await.unwrap();
}
