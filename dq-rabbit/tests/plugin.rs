//! The plugin for delayed messages instead of the ladder.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::Environment;
use dq_core::{Backend, Dq, DurationExt, Finding};
use dq_rabbit::{RabbitBackend, RabbitConfig, TopologyMode};
use dq_servers::RabbitMq;
use dq_testkit::fixture::{claim_for, poll, queue as queue_name, wait_until};

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
    let _wakeups = backend.listen(&[queue_name("Q")], "test").await.unwrap();
    let far = queue.schedule("far", "text/plain").after(1.hours()).await.unwrap();
    let soon = queue.schedule("soon", "text/plain").after(3.seconds()).await.unwrap();

    let claimed = poll("the job is claimed", async || {
        let claimed = claim_for(&*backend, &["Q"], 2, Duration::from_secs(600)).await.unwrap();
        (!claimed.jobs.is_empty()).then_some(claimed)
    })
    .await;
    assert_eq!(claimed.jobs.len(), 1);
    assert_eq!(claimed.jobs[0].job.id, soon.id());
    assert!(claimed.now >= claimed.jobs[0].job.due, "the job is early");
    // The job would also run without its message, so check that the plugin has delayed one.
    let is_delayed = async || broker.eval("delayed:released()") != "0";
    wait_until("the plugin has delayed a message", is_delayed).await;
    // The canary uses the plugin too; on a busy broker, it may be late at first. The job may have
    // run from the log before its message was there.
    let codes = |findings: &[Finding]| -> Vec<_> {
        let codes = findings.iter().map(|finding| finding.code);
        codes.filter(|code| *code != "rabbitmq.messages-late").collect()
    };
    let expected = ["rabbitmq.plugin", "rabbitmq.gauges"];
    wait_until("only these findings", async || codes(&dq.check().await) == expected).await;
    assert!(queue.get(far.id()).await.unwrap().is_some());
    dq.close().await.unwrap();
}
