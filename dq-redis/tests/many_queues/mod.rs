//! Claims from many queues, which look only at queues due according to the queue index.

use std::collections::HashMap;
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{
    Backend, ClaimParams, Claimed, Due, Entropy, LeasedJob, Operation, Renewal, Reschedule,
    Settlement, Verdict, Want,
};
use dq_redis::{RedisBackend, RedisConfig};
use dq_servers::{Redis, RedisCluster};
use dq_testkit::fixture::{after, by_id, dead_ids, in_an_hour, job, queue};

use crate::common::{command_calls, dead, purge};

/// More than a claim looks at without the index.
const QUEUES: usize = 24;
const INDEX: &str = "{dq}:due-queues";
const LEASE: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_millis(1);

fn names() -> Vec<String> {
    (0..QUEUES).map(|number| format!("q{number}")).collect()
}

async fn connect(url: String, shards: &[(&str, u16)]) -> RedisBackend {
    let mut config = RedisConfig::new(url);
    config.response_timeout = Duration::from_secs(60);
    config.shards.extend(shards.iter().map(|(name, shards)| (queue(name), *shards)));
    RedisBackend::connect(&config, &Environment::default()).await.unwrap()
}

async fn claim(backend: &RedisBackend, max: usize, lease: Duration) -> Claimed {
    let wants: Vec<Want> = names().iter().map(|name| Want::new(queue(name), max, lease)).collect();
    backend.claim(ClaimParams::new(&wants, 100, "worker")).await.unwrap()
}

async fn claim_one(backend: &RedisBackend, name: &str, step: &str) -> LeasedJob {
    let mut claimed = claim(backend, 9, LEASE).await;
    assert_eq!(claimed.jobs.len(), 1, "{step}");
    assert_eq!(claimed.jobs[0].job.queue, queue(name), "{step}");
    claimed.jobs.remove(0)
}

#[tokio::test]
async fn queues_that_get_shards_or_lose_them_are_still_claimed() {
    let cluster = RedisCluster::start(3);
    let single = Redis::start();
    for server in [single.url(), format!("redis+cluster://{}", cluster.nodes()[0].address())] {
        let ours = connect(server.clone(), &[]).await;
        assert!(claim(&ours, 9, LEASE).await.jobs.is_empty());
        for shards in [4, 1, 3] {
            let others = connect(server.clone(), &[("q3", shards)]).await;
            others.schedule((0..8).map(|_| job("q3")).collect()).await.unwrap();
            others.schedule(vec![job("q20")]).await.unwrap();
            let claimed = claim(&ours, 9, LEASE).await;
            assert_eq!(claimed.jobs.len(), 9, "{shards} shards");
            for leased in &claimed.jobs {
                let done = Settlement::new(leased.lease(), Verdict::Done);
                ours.settle(&[done]).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn the_limits_of_the_claim_and_the_order_of_the_wants_hold() {
    let server = Redis::start();
    let backend = connect(server.url(), &[]).await;
    claim(&backend, 1, LEASE).await;
    let jobs = names().into_iter().flat_map(|name| (0..3).map(move |_| job(&name)));
    backend.schedule(jobs.collect()).await.unwrap();
    let wants: Vec<Want> =
        names().iter().rev().map(|name| Want::new(queue(name), 2, LEASE)).collect();
    let claimed = backend.claim(ClaimParams::new(&wants, 5, "worker")).await.unwrap();
    let queues: Vec<_> = claimed.jobs.iter().map(|leased| leased.job.queue.to_string()).collect();
    assert_eq!(queues, ["q23", "q23", "q22", "q22", "q21"]);
    assert!(claimed.next_due.unwrap() <= claimed.now, "more are due");
    let none: Vec<Want> = names().iter().map(|name| Want::new(queue(name), 0, LEASE)).collect();
    let polled = backend.claim(ClaimParams::new(&none, 0, "worker")).await.unwrap();
    assert!(polled.jobs.is_empty() && polled.next_due.unwrap() <= polled.now);
    let rest = claim(&backend, 2, LEASE).await;
    assert_eq!(rest.jobs.len(), 2 * (QUEUES - 2) + 2);
}

#[tokio::test]
async fn the_next_due_time_is_that_of_the_wanted_queues() {
    let server = Redis::start();
    let backend = connect(server.url(), &[]).await;
    claim(&backend, 1, LEASE).await;
    let soon: Vec<_> =
        (0..300).map(|number| after(60_000, job(&format!("other{number}")))).collect();
    backend.schedule(soon).await.unwrap();
    let late = in_an_hour(job("q9"));
    let due = backend.schedule(vec![late]).await.unwrap()[0].due();
    // Other queues come first: the claim is repeated when the last known of these is due.
    let claimed = claim(&backend, 1, LEASE).await;
    assert!(claimed.jobs.is_empty() && claimed.next_due.is_some_and(|next| next <= due));
    server.command(&["ZREMRANGEBYRANK", INDEX, "0", "-11"]);
    assert_eq!(claim(&backend, 1, LEASE).await.next_due, Some(due));
}

#[tokio::test]
async fn a_claim_looks_only_at_queues_that_are_due() {
    let server = Redis::start();
    let backend = connect(server.url(), &[]).await;
    claim(&backend, 9, LEASE).await;
    let jobs = names().into_iter().map(|name| in_an_hour(job(&name)));
    backend.schedule(jobs.collect()).await.unwrap();
    let calls_since = |before: &HashMap<String, u64>| -> u64 {
        let mut after = command_calls(&server);
        after.remove("info");
        after.iter().map(|(name, calls)| calls - before.get(name).unwrap_or(&0)).sum()
    };
    claim(&backend, 9, LEASE).await;
    let before = command_calls(&server);
    claim(&backend, 9, LEASE).await;
    // EVALSHA, TIME, and two commands that read the index.
    assert_eq!(calls_since(&before), 4);
    backend.schedule(vec![job("q5")]).await.unwrap();
    let before = command_calls(&server);
    claim_one(&backend, "q5", "one is due").await;
    let commands = calls_since(&before);
    assert!(commands < 30, "{commands} commands");
}

#[tokio::test]
async fn an_index_that_is_lost_or_of_another_type_loses_no_job() {
    let server = Redis::start();
    let backend = connect(server.url(), &[]).await;
    claim(&backend, 9, LEASE).await;
    backend.schedule(vec![job("q1")]).await.unwrap();
    server.command(&["DEL", INDEX]);
    assert!(claim(&backend, 9, LEASE).await.jobs.is_empty());
    let other = connect(server.url(), &[]).await;
    claim_one(&other, "q1", "a new process looks at all queues").await;

    server.command(&["DEL", INDEX]);
    server.command(&["SET", INDEX, "x"]);
    backend.schedule(vec![job("q2")]).await.unwrap();
    claim_one(&backend, "q2", "a string in place of the index").await;
    let findings = backend.check().await;
    let foreign = findings.iter().find(|finding| finding.code == "redis.foreign-key").unwrap();
    assert!(foreign.cause.contains(INDEX), "{foreign}");
}

/// After any calls, the index lists every queue with claimable jobs, early enough.
#[tokio::test]
async fn the_index_is_never_late() {
    let server = Redis::start();
    let backend = connect(server.url(), &[]).await;
    let entropy = Entropy::seeded(20_261_127);
    let random_below = |limit: usize| (entropy.bits() % limit as u128) as usize;
    let mut leased: Vec<LeasedJob> = Vec::new();
    let mut jobs = Vec::new();
    for step in 0..1_500 {
        let name = format!("q{}", random_below(6));
        let queue = queue(&name);
        let delay = Duration::from_millis([0, 0, 1, 40, 5_000, 600_000][random_below(6)]);
        let call = random_below(12);
        match call {
            0..=2 => {
                let job = job(&name).due(Due::After(delay));
                jobs.push(by_id(&job));
                backend.schedule(vec![job]).await.unwrap();
            }
            3 | 4 => {
                let lease = [SOON, Duration::from_millis(30), LEASE][random_below(3)];
                leased.extend(claim(&backend, random_below(3), lease).await.jobs);
            }
            // A claim from few queues leaves the index alone.
            5 => {
                let wants = [Want::new(queue.clone(), 2, delay.max(SOON))];
                let params = ClaimParams::new(&wants, 2, "worker");
                leased.extend(backend.claim(params).await.unwrap().jobs);
            }
            6 | 7 if !leased.is_empty() => {
                let leased = leased.swap_remove(random_below(leased.len()));
                let verdict = match random_below(6) {
                    0 => Verdict::Done,
                    1 => Verdict::Release { started: true },
                    2 => Verdict::Snooze(Due::After(delay)),
                    3 => Verdict::Retry { due: Due::After(delay), error: "no".into() },
                    4 => Verdict::Skip { reason: "no".into() },
                    _ => dead(),
                };
                backend.settle(&[Settlement::new(leased.lease(), verdict)]).await.unwrap();
            }
            8 if !leased.is_empty() => {
                let lease = leased[random_below(leased.len())].lease();
                backend.renew(&[Renewal::new(lease, delay.max(SOON))]).await.unwrap();
            }
            9 if !jobs.is_empty() => {
                let job = jobs[random_below(jobs.len())].clone();
                if random_below(3) == 0 {
                    backend.cancel(&[job]).await.unwrap();
                } else {
                    let moved = Reschedule { job, due: Due::After(delay) };
                    backend.reschedule(&[moved]).await.unwrap();
                }
            }
            10 => {
                let pause = Operation::Pause { queue: &queue };
                let resume = Operation::Resume { queue: &queue };
                let change = if random_below(3) == 0 { pause } else { resume };
                backend.operate(change).await.unwrap();
            }
            11 => {
                let ids = dead_ids(&backend, &queue).await;
                let due = Due::After(delay);
                let replay = Operation::Replay { queue: &queue, jobs: &ids, due };
                backend.operate(replay).await.unwrap();
                if random_below(20) == 0 {
                    purge(&backend, &queue).await;
                }
            }
            _ => {}
        }
        assert_in_index(&server, step, call);
    }
}

#[track_caller]
fn assert_in_index(server: &Redis, step: usize, call: usize) {
    let first = |key: &str| -> Option<f64> {
        let entries = server.command(&["ZRANGE", key, "0", "0", "WITHSCORES"]);
        entries.list().get(1).map(|score| score.text().parse().unwrap())
    };
    for name in names() {
        let paused = server.command(&["HGET", &format!("{{dq}}:meta:{name}"), "paused"]);
        let [due, lease] = ["due", "lease"].map(|kind| first(&format!("{{dq}}:{kind}:{name}")));
        let Some(earliest) = due.into_iter().chain(lease).reduce(f64::min) else { continue };
        if !paused.is_nil() {
            continue;
        }
        let score = server.command(&["ZSCORE", INDEX, &format!("{{dq}}:due:{name}")]);
        assert!(!score.is_nil(), "step {step}, call {call}: {name} is not in the index");
        let time = server.command(&["TIME"]);
        let [seconds, micros] = [0, 1].map(|item| time.list()[item].text().parse::<f64>().unwrap());
        let now = seconds * 1e3 + (micros / 1e3).floor();
        let score: f64 = score.text().parse().unwrap();
        assert!(
            score <= earliest.max(now),
            "step {step}, call {call}: {name} is due at {earliest}, by the index at {score}"
        );
    }
}
