//! Limits that the server has lost come back, and those that nobody needs are deleted.

use std::time::Duration;

use dq_core::{Announcement, Backend, Flow, Operation, Verdict};
use dq_servers::Redis;
use dq_testkit::fixture::{job, queue, stats};

use super::{at_most, claim_as, open};
use crate::common::{HOUR, declare, purge, settle};

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
    assert_eq!(left(), (0, true));
    assert!(!declare(&backend, &queue, Flow::UNLIMITED).await);
}
