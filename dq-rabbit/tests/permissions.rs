//! The rights that the documentation lists are enough, for everything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_core::config::Environment;
use dq_core::{
    Backend, Cancelled, ClaimParams, Dq, DurationExt, Finding, QueueName, Severity, Want,
};
use dq_rabbit::{RabbitBackend, RabbitConfig, TopologyMode};
use dq_servers::shared_rabbitmq;

const ALL: &str = r"^dq\.v1\.";
/// The least that `check` needs to try the ladder.
const CANARY: &str = r"^dq\.v1\.canary\.";

/// A backend for a user who may touch nothing but what begins with the prefix.
async fn open(topology: TopologyMode, configure: &str) -> Arc<RabbitBackend> {
    let server = shared_rabbitmq();
    server.ctl(&["set_permissions", "-p", "rights_of_users", "jobs", configure, ALL, ALL]);
    let url = format!("amqp://jobs:secret@{}/rights_of_users", server.address());
    let mut config = RabbitConfig::new(url);
    config.topology = topology;
    config.response_timeout = Duration::from_secs(60);
    Arc::new(RabbitBackend::connect(&config, &Environment::default()).await.unwrap())
}

/// Everything that a user of the backend does, but for settling, which is a call like any other. What
/// `check` finds in the end, which must have these codes: a broker that is busy may first seem stuck.
async fn use_all_of(backend: Arc<RabbitBackend>, codes: &[&str]) -> Vec<Finding> {
    let name = QueueName::new("Q").unwrap();
    let dq = Dq::builder().backend(backend.clone()).connect().await.unwrap();
    let queue = dq.queue("Q").unwrap();
    queue.schedule("1", "application/json").after(1.hours()).key("later").await.unwrap();
    queue.schedule("2", "application/json").after(2.seconds()).await.unwrap();
    assert_eq!(queue.cancel("later").await.unwrap(), Cancelled::Cancelled);
    let mut wakeups = backend.listen(std::slice::from_ref(&name)).await.unwrap();
    let want = [Want { queue: name, max: 1, lease_for: Duration::from_secs(30) }];
    let claimed = loop {
        let params = ClaimParams { worker: "test", wants: &want, limit: 1 };
        let claimed = backend.claim(params).await.unwrap();
        if !claimed.jobs.is_empty() {
            break claimed;
        }
        tokio::time::timeout(Duration::from_millis(20), wakeups.next()).await.ok();
    };
    assert_eq!(&claimed.jobs[0].job.payload[..], b"2");
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut findings = dq.check().await;
    while !findings.iter().map(|finding| finding.code).eq(codes.iter().copied()) {
        assert!(Instant::now() < deadline, "{codes:?} are not found: {findings:?}");
        findings = dq.check().await;
    }
    dq.close().await.unwrap();
    findings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_listed_is_enough() {
    let server = shared_rabbitmq();
    server.vhost("rights_of_users");
    server.ctl(&["add_user", "jobs", "secret"]);
    use_all_of(open(TopologyMode::Declare, ALL).await, &[]).await;
    // Now that all of it is there, nobody has to declare anything; only `check` would like to.
    let backend = open(TopologyMode::Passive, "").await;
    let untried = use_all_of(backend, &["rabbitmq.ladder-untried"]).await.remove(0);
    assert_eq!(untried.severity, Severity::Info);
    assert!(untried.what.contains("canary"), "{untried}");
    assert!(untried.remedy.contains(CANARY), "what it names is enough: {untried}");
    use_all_of(open(TopologyMode::Passive, CANARY).await, &[]).await;
}
