//! The data of ended jobs on the server. The behaviour suite tests the calls.

use std::time::Duration;

use bytes::Bytes;
use dq_core::config::Environment;
use dq_core::{Backend, Due, Ending, HistoryLimit, HistoryLimits, JobRef, JobState, Verdict};
use dq_redis::{RedisBackend, RedisConfig};
use dq_servers::Redis;

use crate::common::{claim, job, list, purge, queue, settle};

const DAY: Duration = Duration::from_secs(86_400);

async fn connect(server: &Redis, limit: HistoryLimit) -> RedisBackend {
    let environment = Environment::default().history(HistoryLimits::all(limit));
    let mut config = RedisConfig::new(server.url());
    config.response_timeout = Duration::from_secs(60);
    RedisBackend::connect(&config, &environment).await.unwrap()
}

#[tokio::test]
async fn the_history_has_at_most_as_many_jobs_as_its_limit() {
    let server = Redis::start();
    let backend = connect(&server, HistoryLimit::new(10, DAY)).await;
    backend.schedule((0..300).map(|_| job()).collect()).await.unwrap();
    for leased in claim(&backend, 25).await.jobs {
        settle(&backend, &leased, Verdict::Done).await;
    }
    assert_eq!(purge(&backend, &queue()).await, 275);

    let views = list(&backend, &queue(), JobState::Ended, 1_000).await;
    assert_eq!(views.len(), 10);
    assert!(views.iter().all(|view| view.ended.as_ref().unwrap().ending == Ending::Removed));
    for (count, key) in [("ZCARD", "{dq}:ended:q"), ("HLEN", "{dq}:past:q")] {
        assert_eq!(server.command(&[count, key]).int(), 10);
        // The keys outlive the history.
        assert!(server.command(&["PTTL", key]).int() >= 86_400_000);
    }

    let backend = connect(&server, HistoryLimit::new(3, DAY)).await;
    assert_eq!(list(&backend, &queue(), JobState::Ended, 1_000).await.len(), 3);
}

#[tokio::test]
async fn a_history_that_is_off_writes_nothing() {
    let server = Redis::start();
    let backend = connect(&server, HistoryLimit::OFF).await;
    backend.schedule(vec![job(), job().remember(DAY)]).await.unwrap();
    for leased in claim(&backend, 2).await.jobs {
        settle(&backend, &leased, Verdict::Done).await;
        assert_eq!(backend.get(&JobRef::new(queue(), leased.job.id)).await.unwrap(), None);
    }
    let exists = |kind: &str| server.command(&["EXISTS", &format!("{{dq}}:{kind}:q")]).int();
    assert_eq!(["past", "ended", "state", "job"].map(exists), [0; 4]);
    assert_eq!(["pin", "unpin"].map(exists), [1; 2], "the pin does not depend on the history");
}

#[tokio::test]
async fn a_large_payload_of_a_next_step_marks_the_queue() {
    let server = Redis::start();
    let backend = connect(&server, HistoryLimit::default()).await;
    backend.schedule(vec![job()]).await.unwrap();
    let leased = claim(&backend, 1).await.jobs.remove(0);
    let payload = Bytes::from(vec![b'x'; 100_000]);
    settle(&backend, &leased, Verdict::Again { due: Due::NOW, payload: payload.clone() }).await;
    assert_eq!(server.command(&["HGET", "{dq}:meta:q", "large"]).text(), "1");
    assert_eq!(claim(&backend, 1).await.jobs[0].job.payload, payload);
}
