use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dq_core::{Backend, Layer, MemoryBackend, NewJob, Result, Scheduled};
use dq_servers::{RabbitMq, Redis};
use lapin::BasicProperties;
use lapin::options::ConfirmSelectOptions;
use tokio::sync::Notify;

use super::fixture::{Collector, LIMIT, Running, client, memory, publish, source, until};
use crate::broker::{channel, declare, take};

const MESSAGES: usize = 200;
/// Store calls before the one that the server is killed in.
const PAUSE_AT: usize = 50;

/// Holds back one answer: the job is stored, the server is killed, and only then the source tries
/// to acknowledge. The message comes again and must not become a second job.
#[derive(Debug)]
struct Pausing {
    inner: Arc<MemoryBackend>,
    calls: AtomicUsize,
    reached: Notify,
    resume: Notify,
}

#[dq_core::async_trait]
impl Layer for Pausing {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let scheduled = self.inner.schedule(jobs).await;
        if self.calls.fetch_add(1, Ordering::SeqCst) == PAUSE_AT {
            self.reached.notify_one();
            self.resume.notified().await;
        }
        scheduled
    }
}

fn body(number: usize) -> String {
    format!("{{\"n\":{number:03}}}")
}

/// Each message must become exactly one job.
async fn taken_over_a_crash(ingress: &str, kill: impl FnOnce(), restart: impl FnOnce()) -> Running {
    let inner = memory();
    let collector = Collector::of_store(Arc::clone(&inner) as _).await;
    let (calls, reached, resume) = (AtomicUsize::new(0), Notify::new(), Notify::new());
    let store = Arc::new(Pausing { inner, calls, reached, resume });
    let running = Running::start(&client(Arc::clone(&store) as _, ingress).await);
    let reached = tokio::time::timeout(LIMIT, store.reached.notified()).await;
    assert!(reached.is_ok(), "not within {LIMIT:?}: messages are taken");
    tokio::task::block_in_place(kill);
    store.resume.notify_one();
    tokio::task::block_in_place(restart);
    collector.wait(MESSAGES).await;
    let expected: Vec<String> = (0..MESSAGES).map(body).collect();
    assert_eq!(collector.payloads(), expected, "each once");
    running
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_killed_loses_and_doubles_nothing() {
    let broker = tokio::task::spawn_blocking(RabbitMq::start).await.unwrap();
    let url = broker.url();
    let sender = channel(&url).await;
    sender.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    declare(&sender, "in").await;
    broker.sync_declarations();
    for number in 0..MESSAGES {
        let properties = BasicProperties::default().with_message_id(format!("m{number}").into());
        publish(&sender, "in", &body(number), properties).await;
    }
    let ingress = source("amqp", &url, "in", "");
    let running = taken_over_a_crash(&ingress, || broker.kill(), || broker.restart()).await;
    until("all messages are acknowledged", async || {
        let list = ["-q", "list_queues", "name", "messages", "--no-table-headers"];
        let queues = tokio::task::block_in_place(|| broker.ctl(&list));
        queues.lines().any(|line| line.split_whitespace().eq(["in", "0"]))
    })
    .await;
    running.stop().await;
    assert!(take(&channel(&url).await, "in").await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_loses_and_doubles_nothing() {
    let redis = Redis::options().aof().start();
    for number in 0..MESSAGES {
        match number % 2 {
            0 => redis.command(&["LPUSH", "list", &body(number)]).int(),
            _ => i64::from(
                !redis.command(&["XADD", "stream", "*", "payload", &body(number)]).is_nil(),
            ),
        };
    }
    let url = redis.url();
    let ingress =
        source("redis-list", &url, "list", "") + &source("redis-stream", &url, "stream", "");
    let running = taken_over_a_crash(&ingress, || redis.kill(), || redis.restart()).await;
    until("all messages are acknowledged", async || {
        redis.command(&["EXISTS", "list", "list.taking"]).int() == 0
            && redis.command(&["XPENDING", "stream", "dq"]).list()[0].int() == 0
    })
    .await;
    running.stop().await;
}
