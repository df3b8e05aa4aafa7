//! `check` on a real broker: nothing when all is well, and each thing that is wrong with its remedy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_core::config::{Environment, Secret};
use dq_core::{Backend, Clock, Entropy, Finding, Severity, SystemClock, Timestamp};
use dq_rabbit::{QueueKind, RabbitBackend, RabbitConfig};
use dq_servers::RabbitMq;
use futures_util::future::BoxFuture;
use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

/// How long anything may take on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The machine's clock, wrong by so many milliseconds.
#[derive(Debug)]
struct Wrong(i64);

impl Clock for Wrong {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(SystemClock.now().as_millis() + self.0)
    }

    fn elapsed(&self) -> Duration {
        SystemClock.elapsed()
    }

    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()> {
        SystemClock.sleep_until(Timestamp::from_millis(until.as_millis() - self.0))
    }

    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        SystemClock.sleep(delay)
    }
}

async fn open(config: &RabbitConfig) -> RabbitBackend {
    open_at(config, Arc::new(SystemClock)).await
}

async fn open_at(config: &RabbitConfig, clock: Arc<dyn Clock>) -> RabbitBackend {
    let environment = Environment::new(clock, Arc::new(Entropy::from_os()));
    let deadline = Instant::now() + PATIENCE;
    loop {
        match RabbitBackend::connect(config, &environment).await {
            Ok(backend) => return backend,
            Err(error) => assert!(error.is_retryable() && Instant::now() < deadline, "{error}"),
        }
    }
}

async fn channel(server: &RabbitMq) -> (Connection, Channel) {
    let properties = ConnectionProperties::default();
    let connection = Connection::connect(&server.url(), properties).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

fn codes(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().map(|finding| finding.code).collect()
}

/// What the management API says lags behind by some seconds.
async fn until(backend: &RabbitBackend, code: &str) -> Finding {
    let findings = found(backend, |codes| codes.contains(&code), code).await;
    findings.into_iter().find(|finding| finding.code == code).unwrap()
}

/// A broker that is busy may first seem stuck, and then has more to tell.
async fn until_only(backend: &RabbitBackend, expected: &[&str]) -> Vec<Finding> {
    found(backend, |codes| codes == expected, &format!("only {expected:?}")).await
}

async fn found(backend: &RabbitBackend, is: impl Fn(&[&str]) -> bool, what: &str) -> Vec<Finding> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let findings = backend.check().await;
        if is(&codes(&findings)) {
            return findings;
        }
        assert!(Instant::now() < deadline, "{what} is not told: {findings:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_thing_that_is_wrong_is_told() {
    let server = RabbitMq::options().management().start();
    let mut config = RabbitConfig::new(server.url());
    let backend = open(&config).await;
    until_only(&backend, &[]).await;

    // What the management API adds.
    let url = server.management_url();
    let with_login = url.replacen("http://", "http://dq:secret@", 1);
    config.management = Some(Secret::new(if url.contains('@') { url.clone() } else { with_login }));
    let informed = open(&config).await;
    until_only(&informed, &["rabbitmq.single-node"]).await;
    for (wrong_by, which) in [(3_600_000, "ahead of"), (-3_600_000, "behind")] {
        let wrong = open_at(&config, Arc::new(Wrong(wrong_by))).await;
        let expected = ["rabbitmq.clock-skew", "rabbitmq.single-node"];
        let findings = until_only(&wrong, &expected).await;
        assert_eq!(findings[0].severity, Severity::Warning);
        assert!(findings[0].cause.contains(which), "{}", findings[0]);
        assert!(findings[0].remedy.contains("NTP"), "{}", findings[0]);
    }
    server.ctl(&["set_policy", "all", ".*", r#"{"max-length":100000}"#, "--apply-to", "queues"]);
    let policy = until(&informed, "rabbitmq.policy").await;
    assert!(policy.cause.contains("`max-length`"), "{policy}");
    server.ctl(&["clear_policy", "all"]);
    server.ctl(&["set_vm_memory_high_watermark", "absolute", "1MB"]);
    assert_eq!(until(&informed, "rabbitmq.alarm").await.severity, Severity::Error);
    server.ctl(&["set_vm_memory_high_watermark", "absolute", "1GB"]);
    config.management = Some(Secret::new("http://dq:wrong@127.0.0.1:1"));
    let findings = until_only(&open(&config).await, &["rabbitmq.unreachable"]).await;
    assert!(!format!("{findings:?}").contains("wrong"), "{findings:?}");
    config.management = None;

    // What has no queue to go to.
    let (_connection, channel) = channel(&server).await;
    let options = BasicPublishOptions::default();
    let properties = BasicProperties::default().with_delivery_mode(2);
    channel
        .basic_publish("dq.v1.due".into(), "nobody".into(), options, b"x", properties)
        .await
        .unwrap();
    let orphans = until(&backend, "rabbitmq.orphans").await;
    assert!(orphans.cause.starts_with("1 messages"), "{orphans}");
    channel.queue_purge("dq.v1.orphan".into(), Default::default()).await.unwrap();

    // A ladder that does not move.
    channel.queue_delete("dq.v1.l0.1".into(), Default::default()).await.unwrap();
    let stuck = until(&backend, "rabbitmq.ladder").await;
    assert!(stuck.remedy.contains("dead_letter_worker_publisher_confirm_timeout"), "{stuck}");

    // Classic queues.
    let mut classic = RabbitConfig::new(server.url());
    classic.prefix = "classic".to_owned();
    classic.queues = QueueKind::Classic;
    until_only(&open(&classic).await, &["rabbitmq.classic"]).await;

    server.kill();
    let findings = backend.check().await;
    assert_eq!(findings[0].code, "rabbitmq.unreachable");
    assert_eq!(findings[0].severity, Severity::Error);
}
