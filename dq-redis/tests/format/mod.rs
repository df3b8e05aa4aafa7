//! Processes with different versions share a server: they read data in this format, and a version
//! too old for the next format is refused.

mod frozen;
mod limits;

use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{
    Backend, BrowseParams, Clock, ErrorKind, JobRef, JobState, Operation, Renewal, Renewed, Result,
    Scheduled, Settled, SystemClock, Timestamp,
};
use dq_redis::{RedisBackend, RedisConfig, RedissonBackend, RedissonConfig};
use dq_servers::Redis;
use dq_testkit::fixture::{self, claim_for, done_settlements};

const LEASE: Duration = Duration::from_secs(600);

async fn connect(server: &Redis) -> Result<RedisBackend> {
    RedisBackend::connect(&RedisConfig::new(server.url()), &Environment::default()).await
}

#[tokio::test]
async fn a_version_that_is_too_old_for_the_prefix_is_refused_when_it_connects() {
    let server = Redis::start();
    connect(&server).await.unwrap();
    let stored = server.command(&["HMGET", "{dq}:format", "format", "write", "read"]);
    let stored: Vec<String> = stored.list().iter().map(|item| item.text()).collect();
    assert_eq!(stored, ["3", "1", "1"]);
    // This version may use the next format; its number is not lowered.
    server.command(&["HSET", "{dq}:format", "format", "4", "write", "1", "read", "1"]);
    connect(&server).await.unwrap();
    assert_eq!(server.command(&["HGET", "{dq}:format", "format"]).text(), "4");
    for field in ["write", "read"] {
        for too_new in ["4", "x"] {
            server.command(&["HSET", "{dq}:format", field, too_new]);
            let error = connect(&server).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible);
            assert!(error.remedy_text().unwrap().contains("update this program"), "{error}");
        }
        server.command(&["HSET", "{dq}:format", field, "1"]);
    }
}

/// A running process may finish the job it holds; other calls are refused.
async fn raise_while_running(backend: &dyn Backend, server: &Redis, meta: &str) {
    let queue = fixture::queue("q");
    let job = || fixture::job("q");
    drop(backend.schedule(vec![job(), job()]).await.unwrap());
    let claim = || claim_for(backend, &["q"], 1, LEASE);
    let claimed = claim().await.unwrap();
    let leased = &claimed.jobs[0];
    let by_id = JobRef::new(queue.clone(), leased.job.id);

    server.command(&["HSET", meta, "format", "4/4/1"]);
    let refused = [
        backend.schedule(vec![job()]).await.err(),
        claim().await.err(),
        backend.cancel(std::slice::from_ref(&by_id)).await.err(),
        backend.operate(Operation::Pause { queue: &queue }).await.err(),
        backend.operate(Operation::Purge { queue: &queue }).await.err(),
    ];
    for error in refused {
        assert_eq!(error.unwrap().kind(), ErrorKind::Incompatible);
    }
    assert!(backend.get(&by_id).await.unwrap().is_some());
    server.command(&["HSET", meta, "format", "4/4/4"]);
    let refused = [
        backend.get(&by_id).await.err(),
        backend.browse(BrowseParams::new(&queue, JobState::Ready)).await.err(),
        backend.stats(std::slice::from_ref(&queue)).await.err(),
        backend.forecast(&queue, &[Timestamp::EPOCH, SystemClock.now()]).await.err(),
    ];
    for error in refused {
        assert_eq!(error.unwrap().kind(), ErrorKind::Incompatible);
    }

    let renewed = backend.renew(&[Renewal::new(leased.lease(), LEASE)]).await.unwrap();
    assert!(matches!(renewed[..], [Renewed::Until(_)]));
    let done = done_settlements(&claimed);
    assert_eq!(backend.settle(&done).await.unwrap(), [Settled::Accepted]);
}

#[tokio::test]
async fn a_running_process_finishes_what_it_holds_when_the_format_is_raised() {
    let server = Redis::start();
    let native = connect(&server).await.unwrap();
    raise_while_running(&native, &server, "{dq}:meta:q").await;
    let config = RedissonConfig::new(server.url());
    let redisson = RedissonBackend::connect(&config, &Environment::default()).await.unwrap();
    raise_while_running(&redisson, &server, "dq:meta:{q}").await;
}

#[tokio::test]
async fn pins_in_shards_are_neither_read_nor_marked_when_the_format_is_raised() {
    let server = Redis::start();
    let queue = fixture::queue("q");
    let open = async || {
        let mut config = RedisConfig::new(server.url());
        config.shards.insert(queue.clone(), 2);
        RedisBackend::connect(&config, &Environment::default()).await.unwrap()
    };
    let job = || fixture::job("q").remember(LEASE);
    let backend = open().await;
    let pinned = job();
    assert!(backend.schedule(vec![pinned.clone()]).await.unwrap()[0].is_stored());
    let done = done_settlements(&claim_for(&backend, &["q"], 1, LEASE).await.unwrap());
    assert_eq!(backend.settle(&done).await.unwrap(), [Settled::Accepted]);
    let again = backend.schedule(vec![pinned.clone()]).await.unwrap();
    assert!(matches!(again[..], [Scheduled::Ended(_)]), "{again:?}");

    let shards = ["{dq#2.0}:meta:q", "{dq#2.1}:meta:q"];
    for meta in shards {
        server.command(&["HSET", meta, "format", "4/4/1"]);
    }
    let error = backend.schedule(vec![pinned]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "a pin of a later format: {error}");

    for meta in shards {
        assert_eq!(server.command(&["HDEL", meta, "format"]).int(), 1);
    }
    server.command(&["HSET", "{dq}:meta:q", "format", "4/4/1"]);
    // The first backend knows that the queue has pins, and does not ask.
    let error = open().await.schedule(vec![job()]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "a mark of a later format: {error}");
}
