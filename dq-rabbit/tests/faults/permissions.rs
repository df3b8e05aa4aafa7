//! The documented permissions are sufficient.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{Backend, Cancelled, Dq, DurationExt, Finding, Severity};
use dq_rabbit::{RabbitBackend, RabbitConfig, TopologyMode};
use dq_servers::shared_rabbitmq;

use crate::fixture::{LONG_LEASE, claim_until_some, poll, queue as queue_name};

const ALL: &str = r"^dq\.v1\.";
/// `check` needs it to test the ladder.
const CANARY: &str = r"^dq\.v1\.canary\.";

async fn open(topology: TopologyMode, configure: &str) -> Arc<RabbitBackend> {
    let server = shared_rabbitmq();
    server.ctl(&["set_permissions", "-p", "permissions_of_users", "jobs", configure, ALL, ALL]);
    let url = format!("amqp://jobs:secret@{}/permissions_of_users", server.address());
    let mut config = RabbitConfig::new(url);
    config.topology = topology;
    config.response_timeout = Duration::from_secs(60);
    Arc::new(RabbitBackend::connect(&config, &Environment::default()).await.unwrap())
}

/// Waits until `check` finds exactly these codes, because on a busy broker the ladder may seem
/// stalled at first.
async fn use_backend(backend: Arc<RabbitBackend>, codes: &[&str]) -> Vec<Finding> {
    let dq = Dq::builder().backend(backend.clone()).connect().await.unwrap();
    let queue = dq.queue("Q").unwrap();
    let _ = queue.schedule("1", "application/json").after(1.hours()).key("later").await.unwrap();
    let _ = queue.schedule("2", "application/json").after(2.seconds()).await.unwrap();
    assert_eq!(queue.cancel("later").await.unwrap(), Cancelled::Cancelled);
    let _wakeups = backend.listen(&[queue_name("Q")]).await.unwrap();
    let claimed = claim_until_some(&*backend, "Q", LONG_LEASE).await;
    assert_eq!(&claimed.jobs[0].job.payload[..], b"2");
    let findings = poll(&format!("exactly {codes:?}"), async || {
        let mut findings = dq.check().await;
        // A job may run before its message comes.
        let unrelated = ["rabbitmq.gauges", "rabbitmq.messages-late"];
        findings.retain(|finding| !unrelated.contains(&finding.code));
        println!("{findings:?}");
        findings.iter().map(|finding| finding.code).eq(codes.iter().copied()).then_some(findings)
    })
    .await;
    dq.close().await.unwrap();
    findings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_permissions_are_sufficient() {
    let server = shared_rabbitmq();
    server.vhost("permissions_of_users");
    server.ctl(&["add_user", "jobs", "secret"]);
    use_backend(open(TopologyMode::Declare, ALL).await, &[]).await;
    // Everything is declared now.
    let backend = open(TopologyMode::Passive, "").await;
    let untested = use_backend(backend, &["rabbitmq.ladder-untested"]).await.remove(0);
    assert_eq!(untested.severity, Severity::Info);
    assert!(untested.cause.contains("canary"), "{untested}");
    assert!(untested.remedy.contains(CANARY), "{untested}");
    use_backend(open(TopologyMode::Passive, CANARY).await, &[]).await;
}
