//! A process that can write the log and not read it writes little.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use dq_core::{Clock, Scheduled, SystemClock, Timestamp, VirtualClock, async_trait};
use dq_testkit::faults::TcpProxy;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};

use crate::fixture::{
    amqp_client, config, connect_with_clock, in_an_hour, job, retry, stats, wait_until,
};

/// Each call's entry is a message of its own.
const LARGE: usize = 300 * 1024;
/// Long enough for a message that should not be sent.
const QUIET: Duration = Duration::from_millis(500);

/// While it is held, sleeps of a second and more end when the test says so. Time limits of calls
/// are never held.
#[derive(Debug, Default)]
struct HeldClock {
    is_held: AtomicBool,
    held: VirtualClock,
}

#[async_trait]
impl Clock for HeldClock {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn elapsed(&self) -> Duration {
        SystemClock.elapsed()
    }

    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()> {
        SystemClock.sleep_until(until)
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        match self.is_held.load(Ordering::SeqCst) && delay >= Duration::from_secs(1) {
            true => self.held.sleep(delay),
            false => SystemClock.sleep(delay),
        }
    }
}

async fn count_large_messages(url: String) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let (connection, channel) = amqp_client(&url).await;
    channel.basic_qos(100, BasicQosOptions::default()).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-stream-offset".into(), AMQPValue::LongString("first".into()));
    let options = BasicConsumeOptions::default();
    let consuming = channel.basic_consume("dq.v1.log.0".into(), "".into(), options, arguments);
    let mut messages = consuming.await.unwrap();
    tokio::spawn(async move {
        let _connection = connection;
        while let Some(Ok(message)) = messages.next().await {
            message.ack(BasicAckOptions::default()).await.unwrap();
            if message.data.len() > LARGE {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_be_read_is_not_filled() {
    let mut config = config("unread");
    // One thirty-second, 512 KiB, may be in flight.
    config.log_size_mib = 16;
    let proxy = TcpProxy::to(dq_servers::shared_rabbitmq().address()).await;
    let url = config.url.expose().to_owned();
    config.url = dq_core::config::Secret::new(proxy.url(&url));
    let clock = Arc::new(HeldClock::default());
    let backend = retry(|| connect_with_clock(&config, Arc::clone(&clock) as _)).await;
    retry(|| backend.schedule(vec![in_an_hour(job("q"))])).await;
    let written = count_large_messages(url).await;
    let expect = async |count, when: &str| {
        wait_until(when, async || written.load(Ordering::SeqCst) >= count).await;
        tokio::time::sleep(QUIET).await;
        assert_eq!(written.load(Ordering::SeqCst), count, "{when}");
    };

    clock.is_held.store(true, Ordering::SeqCst);
    proxy.pause_replies();
    let calls = (0..8).map(|_| {
        let (backend, job) = (Arc::clone(&backend), in_an_hour(job("q")).payload(vec![1; LARGE]));
        tokio::spawn(async move { backend.schedule(vec![job]).await })
    });
    let calls: Vec<_> = calls.collect();
    expect(2, "two of eight calls, which are more than 512 KiB").await;
    // One message is written again after two seconds, then after four more.
    clock.held.advance(Duration::from_secs(2));
    expect(3, "after two seconds").await;
    clock.held.advance(Duration::from_secs(2));
    expect(3, "after four seconds").await;
    clock.held.advance(Duration::from_secs(2));
    expect(4, "after six seconds").await;

    proxy.resume();
    clock.is_held.store(false, Ordering::SeqCst);
    clock.held.advance(Duration::from_secs(60));
    for answer in join_all(calls).await {
        let results = answer.unwrap().unwrap();
        assert!(matches!(results[..], [Scheduled::Created(_)]), "{results:?}");
    }
    assert_eq!(stats(&*backend, "q").await.scheduled, 9);
}
