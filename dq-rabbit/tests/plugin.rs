//! The plugin for delayed messages instead of the ladder.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_core::config::Environment;
use dq_core::{Backend, ClaimParams, Dq, DurationExt, Finding, QueueName, Want};
use dq_rabbit::{RabbitBackend, RabbitConfig, TopologyMode};
use dq_servers::RabbitMq;

/// A broker with a stand-in for the plugin's exchange type.
fn broker() -> RabbitMq {
    let broker = RabbitMq::start();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plugin/delayed.erl");
    broker.eval(&format!(
        "{{ok, Name, Code}} = compile:file({source:?}, [binary]), \
         {{module, _}} = code:load_binary(Name, \"delayed\", Code), ok = delayed:register()"
    ));
    broker
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plugin_delays_messages() {
    let broker = broker();
    let mut config = RabbitConfig::new(broker.url());
    config.topology = TopologyMode::Plugin;
    config.response_timeout = Duration::from_secs(60);
    let backend = RabbitBackend::connect(&config, &Environment::default()).await.unwrap();
    let backend = Arc::new(backend);
    let dq = Dq::builder().backend(backend.clone()).connect().await.unwrap();
    let queue = dq.queue("Q").unwrap();
    let name = QueueName::new("Q").unwrap();
    let mut wakeups = backend.listen(std::slice::from_ref(&name)).await.unwrap();
    let far = queue.schedule("far", "text/plain").after(1.hours()).await.unwrap();
    let soon = queue.schedule("soon", "text/plain").after(3.seconds()).await.unwrap();

    let want = [Want::new(name, 2, Duration::from_secs(600))];
    let deadline = Instant::now() + Duration::from_secs(120);
    let claimed = loop {
        let params = ClaimParams::new(&want, 2, "test");
        let claimed = backend.claim(params).await.unwrap();
        if !claimed.jobs.is_empty() {
            break claimed;
        }
        assert!(Instant::now() < deadline, "the job is not claimed");
        tokio::time::timeout(Duration::from_millis(20), wakeups.next()).await.ok();
    };
    assert_eq!(claimed.jobs.len(), 1);
    assert_eq!(claimed.jobs[0].job.id, soon.id());
    assert!(claimed.now >= claimed.jobs[0].job.due, "the job is early");
    // The job would also run without its message, so check that the plugin has delayed one.
    while broker.eval("delayed:released()") == "0" {
        assert!(Instant::now() < deadline, "the plugin has delayed no message");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The canary uses the plugin too; on a busy broker, it may be late at first. The job may have run
    // from the log before its message was there.
    let codes = |findings: &[Finding]| -> Vec<_> {
        let codes = findings.iter().map(|finding| finding.code);
        codes.filter(|code| *code != "rabbitmq.messages-late").collect()
    };
    let expected = ["rabbitmq.plugin", "rabbitmq.gauges"];
    let mut findings = dq.check().await;
    while codes(&findings) != expected {
        assert!(Instant::now() < deadline, "{findings:?}");
        findings = dq.check().await;
    }
    assert!(queue.get(far.id()).await.unwrap().is_some());
    dq.close().await.unwrap();
}
