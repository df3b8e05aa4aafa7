//! `check` on a real broker.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::Secret;
use dq_core::{Backend, ErrorKind, Finding, Severity};
use dq_rabbit::{QueueKind, RabbitConfig};
use dq_servers::RabbitMq;
use lapin::BasicProperties;

use crate::fixture::{
    SkewedClock, amqp_client, connect, connect_with_clock, delete_queues, finding, open, poll,
    publish, retry,
};

fn codes(findings: &[Finding]) -> Vec<&'static str> {
    let codes = findings.iter().map(|finding| finding.code);
    codes.filter(|code| *code != "rabbitmq.gauges").collect()
}

/// Waits, because the management API lags behind by some seconds.
async fn wait_for(backend: &dyn Backend, code: &str) -> Finding {
    let findings = poll_check(backend, |codes| codes.contains(&code), code).await;
    findings.into_iter().find(|finding| finding.code == code).unwrap()
}

/// Waits, because on a busy broker the ladder may seem stalled at first.
async fn wait_for_exactly(backend: &dyn Backend, expected: &[&str]) -> Vec<Finding> {
    poll_check(backend, |codes| codes == expected, &format!("only {expected:?}")).await
}

async fn poll_check(
    backend: &dyn Backend,
    matches: impl Fn(&[&str]) -> bool,
    what: &str,
) -> Vec<Finding> {
    poll(what, async || {
        let findings = backend.check().await;
        let found = matches(&codes(&findings));
        if !found {
            println!("not yet {what}: {findings:?}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        found.then_some(findings)
    })
    .await
}

/// Generations have no limit, so connecting refuses any policy that sets one.
async fn refuses_a_policy_that_would_cut_the_log(server: &RabbitMq, config: &RabbitConfig) {
    server.ctl(&["set_policy", "log", r"^dq\.v1\.log", r#"{"max-length-bytes":1000000}"#]);
    let refused = async || {
        let error = connect(config).await.err()?;
        (error.kind() == ErrorKind::Config).then(|| error.to_string())
    };
    let text = poll("connecting is refused", refused).await;
    let words = ["`max-length-bytes`", "dq.v1.log", "exclude"];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    server.ctl(&["clear_policy", "log"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_problem_has_a_finding() {
    let server = RabbitMq::options().management().start();
    let mut config = RabbitConfig::new(server.url());
    let backend = open(&config).await;
    wait_for_exactly(&*backend, &[]).await;
    let gauges = finding(&*backend, "rabbitmq.gauges").await.unwrap();
    assert!(gauges.cause.ends_with("uses 0 % of its capacity"), "{gauges}");

    let url = server.management_url();
    let with_login = url.replacen("http://", "http://dq:secret@", 1);
    config.management = Some(Secret::new(if url.contains('@') { url.clone() } else { with_login }));
    let managed = open(&config).await;
    wait_for_exactly(&*managed, &["rabbitmq.single-node"]).await;
    for (offset, direction) in [(3_600_000, "ahead of"), (-3_600_000, "behind")] {
        let skewed = retry(|| connect_with_clock(&config, Arc::new(SkewedClock(offset)))).await;
        let expected = ["rabbitmq.clock-skew", "rabbitmq.single-node"];
        let findings = wait_for_exactly(&*skewed, &expected).await;
        assert_eq!(findings[0].severity, Severity::Warning);
        assert!(findings[0].cause.contains(direction), "{}", findings[0]);
        assert!(findings[0].remedy.contains("NTP"), "{}", findings[0]);
    }
    server.ctl(&["set_policy", "all", ".*", r#"{"max-length":100000}"#, "--apply-to", "queues"]);
    let policy = wait_for(&*managed, "rabbitmq.policy").await;
    assert!(policy.cause.contains("`max-length`"), "{policy}");
    server.ctl(&["clear_policy", "all"]);
    let has_no_policy = |codes: &[&str]| !codes.contains(&"rabbitmq.policy");
    poll_check(&*managed, has_no_policy, "the end of the policy").await;
    let mut other = config.clone();
    other.url = Secret::new(server.vhost("other"));
    let other = open(&other).await;
    server.ctl(&["set_policy", "-p", "other", "all", ".*", r#"{"max-length":100000}"#]);
    wait_for(&*other, "rabbitmq.policy").await;
    let has_asked = |codes: &[&str]| !codes.contains(&"rabbitmq.unreachable");
    let findings = poll_check(&*managed, has_asked, "an answer of the management API").await;
    assert!(has_no_policy(&codes(&findings)), "{findings:?}");
    drop(other);
    refuses_a_policy_that_would_cut_the_log(&server, &config).await;
    poll_check(&*managed, has_no_policy, "the end of all policies").await;
    server.ctl(&["set_vm_memory_high_watermark", "absolute", "1MB"]);
    assert_eq!(wait_for(&*managed, "rabbitmq.alarm").await.severity, Severity::Error);
    server.ctl(&["set_vm_memory_high_watermark", "absolute", "1GB"]);
    config.management = Some(Secret::new("http://dq:wrong@127.0.0.1:1"));
    let findings = wait_for_exactly(&*open(&config).await, &["rabbitmq.unreachable"]).await;
    assert!(!format!("{findings:?}").contains("wrong"), "{findings:?}");
    config.management = None;

    let (_connection, channel) = amqp_client(&server.url()).await;
    let properties = BasicProperties::default().with_delivery_mode(2);
    publish(&channel, "dq.v1.due", "nobody", b"x", properties).await;
    let orphans = wait_for(&*backend, "rabbitmq.orphans").await;
    assert!(orphans.cause.starts_with("1 messages"), "{orphans}");
    channel.queue_purge("dq.v1.orphan".into(), Default::default()).await.unwrap();

    delete_queues(&RabbitConfig::new(server.url()), &["dq.v1.l0.1"]).await;
    let stalled = wait_for(&*backend, "rabbitmq.ladder").await;
    assert!(stalled.remedy.contains("dead_letter_worker_publisher_confirm_timeout"), "{stalled}");

    // Without the exchange, the broker closes the channel.
    channel.exchange_delete("dq.v1.l0".into(), Default::default()).await.unwrap();
    let missing = wait_for(&*backend, "rabbitmq.unreachable").await;
    assert!(missing.cause.contains("dq.v1.l0"), "{missing}");

    let mut classic = RabbitConfig::new(server.url());
    classic.prefix = "classic".to_owned();
    classic.queues = QueueKind::Classic;
    wait_for_exactly(&*open(&classic).await, &["rabbitmq.classic"]).await;

    server.kill();
    let findings = backend.check().await;
    assert_eq!(findings[0].code, "rabbitmq.unreachable");
    assert_eq!(findings[0].severity, Severity::Error);
}
