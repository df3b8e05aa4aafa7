//! A limit is of the queue, not of a shard.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::{Backend, ErrorKind, Flow, LeasedJob, NewJob, Operation, QueueName, Verdict};
use dq_redis::RedisBackend;
use dq_servers::shared_redis;
use dq_testkit::fixture::{assert_error, claim_for};
use tokio::task::JoinSet;

use crate::common::{ForeignKey, HOUR, at_most, declare, purge};
use crate::shards::fixture::{
    Topology, assert_refused, claim, job, keyed, process, queue, settle, stats,
};

const SHARDS: u16 = 5;
const LIMIT: usize = 3;
const JOBS: usize = 120;

/// Each claimer holds the jobs of one claim during the next. `name` tells what of a job has the
/// limit.
async fn run_concurrently(
    queue: &QueueName,
    jobs: Vec<NewJob>,
    limits: Flow,
    name: fn(&LeasedJob) -> String,
) {
    let observer = process(Topology::Server, queue, Some(SHARDS)).await;
    declare(&observer, queue, limits).await;
    observer.schedule(jobs).await.unwrap();
    let (running, done) = (Arc::new(Mutex::new(HashMap::new())), Arc::new(AtomicUsize::new(0)));
    let mut claimers = JoinSet::new();
    for _ in 0..4 {
        let (queue, running, done) = (queue.clone(), Arc::clone(&running), Arc::clone(&done));
        claimers.spawn(async move {
            let process = process(Topology::Server, &queue, Some(SHARDS)).await;
            while done.load(Ordering::SeqCst) < JOBS {
                let mut taken = Vec::new();
                for _ in 0..2 {
                    let more = claim(&process, &queue, 2).await;
                    for leased in &more {
                        let mut running = running.lock().unwrap();
                        let now: &mut usize = running.entry(name(leased)).or_default();
                        *now += 1;
                        assert!(*now <= LIMIT, "{now} jobs run, and {LIMIT} may");
                    }
                    taken.extend(more);
                }
                // A job counts until its settlement begins.
                for leased in &taken {
                    *running.lock().unwrap().get_mut(&name(leased)).unwrap() -= 1;
                    settle(&process, std::slice::from_ref(leased), &Verdict::Done).await;
                    done.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
    }
    while let Some(claimer) = claimers.join_next().await {
        claimer.unwrap();
    }
    assert_eq!(stats(&observer, queue).await.stored(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_claimers_of_all_shards_keep_the_limit() {
    let queue = queue();
    let jobs = keyed(&queue, JOBS);
    run_concurrently(&queue, jobs, at_most(LIMIT as u32), |_| String::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_claimers_of_all_shards_keep_the_limit_of_a_group() {
    let queue = queue();
    let group = |number| if number % 4 == 0 { "small" } else { "large" };
    let jobs = keyed(&queue, JOBS).into_iter().enumerate();
    let jobs = jobs.map(|(number, job)| job.group(group(number))).collect();
    let limits = Flow::UNLIMITED.group_max_running(LIMIT as u32);
    run_concurrently(&queue, jobs, limits, |leased| leased.job.group().unwrap().to_owned()).await;
}

#[tokio::test]
async fn a_group_starts_in_order_of_due_whatever_the_shard() {
    let queue = queue();
    let process = process(Topology::Server, &queue, Some(SHARDS)).await;
    declare(&process, &queue, Flow::UNLIMITED.group_max_running(1)).await;
    let now = process.now().await.unwrap();
    let due = |n: u64| now - Duration::from_millis(100 - n);
    let jobs = (0..30).map(|n| job(&queue, None, due(n)).group("a"));
    process.schedule(jobs.collect()).await.unwrap();
    for n in 0..30 {
        let taken = claim(&process, &queue, 9).await;
        let dues: Vec<_> = taken.iter().map(|leased| leased.job.due).collect();
        assert_eq!(dues, [due(n)], "the earliest job of all shards, and no other");
        assert_eq!(stats(&process, &queue).await.ready, 29 - n, "parked jobs are ready");
        settle(&process, &taken, &Verdict::Done).await;
    }
}

#[tokio::test]
async fn jobs_of_a_shard_that_cannot_be_served_are_not_counted_in_their_group() {
    let queue = queue();
    let process = process(Topology::Server, &queue, Some(2)).await;
    declare(&process, &queue, Flow::UNLIMITED.group_max_running(20)).await;
    let jobs = keyed(&queue, 20).into_iter().map(|job| job.group("a"));
    process.schedule(jobs.collect()).await.unwrap();
    let foreign = ForeignKey::replace(shared_redis(), &format!("{{dq#2.1}}:state:{queue}"));
    let taken = claim(&process, &queue, 20).await;
    foreign.restore();
    assert!((1..20).contains(&taken.len()), "{} jobs of the other shard", taken.len());
    let counted = shared_redis().command(&["HGET", &format!("{{dq}}:flow:{queue}"), "na"]).text();
    assert_eq!(counted, taken.len().to_string());
    assert_eq!(claim(&process, &queue, 20).await.len(), 20 - taken.len());
}

/// A pause takes effect in one shard after the other.
#[tokio::test]
async fn leases_are_counted_while_one_shard_is_paused() {
    let queue = queue();
    let process = process(Topology::Server, &queue, Some(2)).await;
    declare(&process, &queue, Flow::UNLIMITED.group_max_running(20)).await;
    let jobs = keyed(&queue, 20).into_iter().map(|job| job.group("a"));
    process.schedule(jobs.collect()).await.unwrap();
    for shard in ["2.0", "2.1"] {
        let meta = format!("{{dq#{shard}}}:meta:{queue}");
        shared_redis().command(&["HSET", &meta, "paused", "1"]);
        let taken = claim(&process, &queue, 20).await;
        assert!((1..20).contains(&taken.len()), "{} jobs of the other shard", taken.len());
        let flow = format!("{{dq}}:flow:{queue}");
        let counted = shared_redis().command(&["HMGET", &flow, "n", "na"]);
        let counted: Vec<_> = counted.list().iter().map(|count| count.text()).collect();
        assert_eq!(counted, [taken.len().to_string(), taken.len().to_string()], "{shard}");
        shared_redis().command(&["HDEL", &meta, "paused"]);
        settle(&process, &taken, &Verdict::Release { started: false }).await;
    }
}

#[tokio::test]
async fn all_shards_share_limits_and_what_closes_them() {
    let queue = queue();
    let process = process(Topology::Server, &queue, Some(SHARDS)).await;
    declare(&process, &queue, at_most(LIMIT as u32)).await;
    process.schedule(keyed(&queue, 20)).await.unwrap();
    let mut taken = claim(&process, &queue, 20).await;
    assert_eq!(taken.len(), LIMIT);
    assert!(claim(&process, &queue, 20).await.is_empty(), "the queue is full");
    let done = taken.split_off(1);
    settle(&process, &done, &Verdict::Done).await;
    assert_eq!(claim(&process, &queue, 20).await.len(), done.len(), "in whatever shard");
    settle(&process, &taken, &Verdict::Throttle(HOUR.into())).await;
    assert!(claim(&process, &queue, 20).await.is_empty(), "one shard's job has closed all");
    assert!(stats(&process, &queue).await.flow.opens_at.is_some());
    let resumed = process.operate(Operation::Resume { queue: &queue }).await.unwrap();
    assert_eq!(resumed.affected, 1);
    assert_eq!(claim(&process, &queue, 20).await.len(), 1);
}

#[tokio::test]
async fn a_change_of_the_number_keeps_limits_and_what_a_rate_has_used() {
    let queue = queue();
    let flow = at_most(4).rate("1/1h burst 3".parse().unwrap());
    declare(&process(Topology::Server, &queue, None).await, &queue, flow).await;
    for (shards, may_start) in [(2, 1), (1, 1), (7, 1), (2, 0)] {
        let process = process(Topology::Server, &queue, Some(shards)).await;
        process.schedule(keyed(&queue, 5)).await.unwrap();
        assert_eq!(stats(&process, &queue).await.flow.declared, flow, "{shards} shards");
        let taken = claim(&process, &queue, 1).await;
        assert_eq!(taken.len(), may_start, "{shards} shards");
        settle(&process, &taken, &Verdict::Done).await;
        purge(&process, &queue).await;
    }
}

#[tokio::test]
async fn in_a_cluster_a_limited_queue_has_one_shard() {
    let queue = queue();
    let words = ["several shards", queue.as_str(), "`shards` to 1"];
    let sharded = process(Topology::Cluster, &queue, Some(2)).await;
    let limit = Operation::DeclareFlow { queue: &queue, flow: at_most(1) };
    assert_error(sharded.operate(limit).await, ErrorKind::Unsupported, &words);
    sharded.schedule(keyed(&queue, 2)).await.unwrap();
    let unset = process(Topology::Cluster, &queue, None).await;
    let other = Operation::OverrideFlow { queue: &queue, flow: Some(at_most(1)) };
    assert_error(unset.operate(other).await, ErrorKind::Unsupported, &words);
    // Runners declare all queues.
    assert!(!declare(&unset, &queue, Flow::UNLIMITED).await);
    purge(&unset, &queue).await;

    let single = process(Topology::Cluster, &queue, Some(1)).await;
    single.schedule(vec![job(&queue, None, HOUR)]).await.unwrap();
    assert!(declare(&single, &queue, at_most(1)).await);
    purge(&single, &queue).await;
    let many = process(Topology::Cluster, &queue, Some(4)).await;
    assert_refused(many.schedule(keyed(&queue, 1)).await, &queue, 1, 4);
    single.schedule(keyed(&queue, 3)).await.unwrap();
    assert_eq!(claim(&single, &queue, 3).await.len(), 1, "the limit is kept");
}

#[tokio::test]
async fn a_throttle_closes_all_shards_in_a_cluster() {
    let queue = queue();
    let process = process(Topology::Cluster, &queue, Some(4)).await;
    process.schedule(keyed(&queue, 20)).await.unwrap();
    let taken = claim(&process, &queue, 1).await;
    let minute = Duration::from_secs(60);
    settle(&process, &taken, &Verdict::Throttle(minute.into())).await;
    assert!(claim(&process, &queue, 20).await.is_empty());
    assert!(stats(&process, &queue).await.flow.opens_at.is_some());
    let resumed = process.operate(Operation::Resume { queue: &queue }).await.unwrap();
    assert_eq!(resumed.affected, 1);
    assert_eq!(claim(&process, &queue, 20).await.len(), 19);
}

/// Wants both queues in one claim.
async fn claim_both(process: &RedisBackend, queues: [&QueueName; 2]) -> Vec<LeasedJob> {
    let claimed = claim_for(process, &queues.map(QueueName::as_str), 50, HOUR).await;
    claimed.unwrap().jobs
}

#[tokio::test]
async fn a_shard_that_cannot_be_served_stops_its_limited_queue_only() {
    for limits in [at_most(1), Flow::UNLIMITED.group_max_running(1)] {
        for kind in ["due", "job", "lease", "meta", "parked"] {
            let queue = queue();
            let other = QueueName::new(format!("{queue}-other")).unwrap();
            let process = process(Topology::Server, &queue, Some(SHARDS)).await;
            declare(&process, &queue, limits).await;
            let jobs = keyed(&queue, 20).into_iter().map(|job| job.group("a"));
            process.schedule(jobs.collect()).await.unwrap();
            process.schedule(keyed(&other, 1)).await.unwrap();
            let running = claim(&process, &queue, 20).await;
            assert_eq!(running.len(), 1);

            let key = format!("{{dq#{SHARDS}.3}}:{kind}:{queue}");
            let foreign = ForeignKey::replace(shared_redis(), &key);
            let served = claim_both(&process, [&queue, &other]).await;
            let served: Vec<_> = served.iter().map(|leased| &leased.job.queue).collect();
            assert_eq!(served, [&other], "{limits} {kind}");
            // A claim from a full queue without groups reads neither records nor parked jobs.
            if limits.group_max_running.is_some() || !["job", "parked"].contains(&kind) {
                let refused = claim_for(&process, &[queue.as_str()], 20, HOUR).await;
                assert_error(refused, ErrorKind::Incompatible, &[queue.as_str(), "WRONGTYPE"]);
            }
            foreign.restore();

            assert!(claim(&process, &queue, 20).await.is_empty(), "{limits} {kind}: one runs");
            settle(&process, &running, &Verdict::Done).await;
            for _ in 1..20 {
                let next = claim(&process, &queue, 20).await;
                assert_eq!(next.len(), 1, "{limits} {kind}");
                settle(&process, &next, &Verdict::Done).await;
            }
            assert_eq!(stats(&process, &queue).await.stored(), 0);
        }
    }
}

#[tokio::test]
async fn a_shard_of_a_later_format_stops_its_limited_queue() {
    let queue = queue();
    let process = process(Topology::Server, &queue, Some(SHARDS)).await;
    declare(&process, &queue, Flow::UNLIMITED.group_max_running(1)).await;
    process.schedule(keyed(&queue, 20)).await.unwrap();
    let set_format = |format: &str| {
        let meta = format!("{{dq#{SHARDS}.3}}:meta:{queue}");
        shared_redis().command(&["HSET", &meta, "format", format]);
    };
    set_format("9/9/1");
    let refused = claim_for(&process, &[queue.as_str()], 20, HOUR).await;
    assert_error(refused, ErrorKind::Incompatible, &["version"]);
    set_format("3/3/3");
    assert_eq!(claim(&process, &queue, 20).await.len(), 20, "they have no group");
}

#[tokio::test]
async fn in_a_cluster_a_queue_with_groups_is_served_beside_one_with_shards() {
    let (sharded, grouped) = (queue(), queue());
    let process = process(Topology::Cluster, &sharded, Some(4)).await;
    declare(&process, &grouped, Flow::UNLIMITED.group_max_running(1)).await;
    process.schedule(keyed(&sharded, 8)).await.unwrap();
    let jobs = keyed(&grouped, 4).into_iter().map(|job| job.group("a"));
    process.schedule(jobs.collect()).await.unwrap();
    let both = claim_both(&process, [&sharded, &grouped]).await;
    assert_eq!(both.len(), 8 + 1);
    settle(&process, &both, &Verdict::Done).await;
    for _ in 1..4 {
        let next = claim_both(&process, [&sharded, &grouped]).await;
        assert_eq!(next.len(), 1);
        settle(&process, &next, &Verdict::Done).await;
    }
}
