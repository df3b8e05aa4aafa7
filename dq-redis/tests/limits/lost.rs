//! Limits that the server has lost come back, and those that nobody needs are deleted.

use std::time::Duration;

use dq_core::{Announcement, Backend, ErrorKind, Flow, Operation, QueueName, Verdict};
use dq_servers::Redis;
use dq_testkit::fixture::{assert_error, job, queue, stats};

use super::{at_most, claim_as, open};
use crate::common::{ForeignKey, HOUR, declare, purge, settle};

async fn announce(backend: &dyn Backend) {
    backend.announce(Announcement::new("runner", "{}", Duration::from_secs(60))).await.unwrap();
}

#[tokio::test]
async fn a_runners_announcement_restores_lost_limits() {
    let redis = Redis::start();
    let (backend, newer) = (open(&redis).await, open(&redis).await);
    let queues = [queue("q"), queue("changed"), queue("lifted")];
    for queue in &queues {
        declare(&backend, queue, at_most(1)).await;
    }
    announce(&backend).await;
    redis.command(&["FLUSHALL"]);
    declare(&newer, &queues[1], at_most(2)).await;
    declare(&newer, &queues[2], at_most(2)).await;
    declare(&newer, &queues[2], Flow::UNLIMITED).await;
    announce(&backend).await;
    let declared = async |name| stats(&backend, name).await.flow.declared;
    assert_eq!(declared("q").await, at_most(1));
    assert_eq!(declared("changed").await, at_most(2), "the newest declaration counts");
    assert_eq!(declared("lifted").await, Flow::UNLIMITED);

    // The next announcement does not ask, as nothing was lost.
    redis.command(&["DEL", "{dq}:flow:q"]);
    announce(&backend).await;
    assert_eq!(declared("q").await, Flow::UNLIMITED);
}

#[tokio::test]
async fn a_purge_deletes_what_is_left_of_limits() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let queue = queue("q");
    let left = || {
        let meta = redis.command(&["HGET", "{dq}:meta:q", "format"]);
        (redis.command(&["EXISTS", "{dq}:flow:q", "{dq}:line:q"]).int(), meta.is_nil())
    };
    declare(&backend, &queue, at_most(1)).await;
    backend.schedule((0..3).map(|_| job("q")).collect()).await.unwrap();
    let running = claim_as(&backend, "w", std::slice::from_ref(&queue), 1).await;
    claim_as(&backend, "waits", std::slice::from_ref(&queue), 1).await;
    purge(&backend, &queue).await;
    assert_eq!(left(), (2, false), "the queue is limited");
    settle(&backend, &running.jobs[0], Verdict::Throttle(HOUR.into())).await;
    declare(&backend, &queue, Flow::UNLIMITED).await;
    purge(&backend, &queue).await;
    assert!(stats(&backend, "q").await.flow.opens_at.is_some(), "the queue is throttled");
    backend.operate(Operation::Resume { queue: &queue }).await.unwrap();
    purge(&backend, &queue).await;
    assert_eq!(left(), (1, true), "it is only remembered that there are no limits any more");
    assert!(!declare(&backend, &queue, Flow::UNLIMITED).await);
    let fields = || redis.command(&["HKEYS", "{dq}:flow:q"]).list().len();
    assert_eq!((fields(), left()), (1, (1, true)));
    let expires_in = || redis.command(&["PTTL", "{dq}:flow:q"]).int();
    assert!((1..=30 * 24 * 3_600_000).contains(&expires_in()));
    declare(&backend, &queue, at_most(2)).await;
    assert_eq!(expires_in(), -1, "limits stay");
    declare(&backend, &queue, Flow::UNLIMITED).await;
    assert_eq!((fields(), left()), (1, (1, true)), "the queue is empty");
    assert!(expires_in() > 0);
}

/// As if the server had lost the announcement and nothing else.
async fn announce_again(redis: &Redis, backend: &dyn Backend) {
    redis.command(&["DEL", "{dq}:runners", "{dq}:runner-ends"]);
    announce(backend).await;
}

#[tokio::test]
async fn a_removal_is_remembered_after_a_purge() {
    let redis = Redis::start();
    let (older, newer) = (open(&redis).await, open(&redis).await);
    declare(&older, &queue("q"), at_most(1)).await;
    declare(&newer, &queue("q"), Flow::UNLIMITED).await;
    purge(&newer, &queue("q")).await;
    announce_again(&redis, &older).await;
    assert_eq!(stats(&older, "q").await.flow.declared, Flow::UNLIMITED);
}

#[tokio::test]
async fn the_latest_declaration_counts_whoever_restores_it_first() {
    let redis = Redis::start();
    let queue = queue("q");
    for latest in [at_most(2), Flow::UNLIMITED] {
        let (older, newer) = (open(&redis).await, open(&redis).await);
        declare(&older, &queue, at_most(1)).await;
        declare(&newer, &queue, latest).await;
        for restore in [[&older, &newer], [&newer, &older]] {
            redis.command(&["FLUSHALL"]);
            for backend in restore {
                announce_again(&redis, backend).await;
            }
            announce_again(&redis, &older).await;
            let fields = redis.command(&["HGETALL", "{dq}:flow:q"]);
            let declared = redis.command(&["HGET", "{dq}:flow:q", "declared"]).text();
            let text = if latest.is_limited() { "2;;;" } else { ";;;" };
            assert_eq!(declared, text, "{fields:?}");
        }
        declare(&older, &queue, at_most(3)).await;
        announce_again(&redis, &newer).await;
        assert_eq!(stats(&older, "q").await.flow.declared, at_most(3), "a new one counts");
    }
}

#[tokio::test]
async fn each_queue_gets_its_lost_limits_by_itself() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let queues: Vec<QueueName> = (0..10).map(|n| queue(&format!("q{n}"))).collect();
    for queue in &queues {
        declare(&backend, queue, at_most(1)).await;
    }
    announce(&backend).await;
    redis.command(&["FLUSHALL"]);
    let (damaged, well) = queues.split_at(5);
    let foreign = |queue: &QueueName| ForeignKey::replace(&redis, &format!("{{dq}}:flow:{queue}"));
    let foreign: Vec<_> = damaged.iter().map(foreign).collect();
    let announcement = || Announcement::new("runner", "{}", Duration::from_secs(60));
    let names: Vec<&str> = damaged.iter().map(QueueName::as_str).collect();
    assert_error(backend.announce(announcement()).await, ErrorKind::Incompatible, &names);
    for queue in well {
        assert_eq!(stats(&backend, queue.as_str()).await.flow.declared, at_most(1), "{queue}");
    }
    foreign.into_iter().for_each(ForeignKey::restore);
    announce(&backend).await;
    for queue in damaged {
        assert_eq!(stats(&backend, queue.as_str()).await.flow.declared, at_most(1), "{queue}");
    }
}
