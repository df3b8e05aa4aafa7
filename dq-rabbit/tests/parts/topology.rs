//! Objects are declared, found, and told apart.

use dq_core::ErrorKind;
use dq_servers::shared_rabbitmq;
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;

use super::rig::{assert_told, config, queue, topology};
use crate::config::{QueueKind, TopologyMode};

#[tokio::test(flavor = "multi_thread")]
async fn declaring_again_changes_nothing_and_looking_finds_all() {
    let mut config = config("again");
    config.queues = QueueKind::Classic;
    let (_link, topology) = topology(&config);
    for _ in 0..2 {
        let began = std::time::Instant::now();
        topology.prepare().await.unwrap();
        topology.ready(&queue("orders.new #1")).await.unwrap();
        topology.ready(&queue("orders.new #1")).await.unwrap();
        topology.restore().await.unwrap();
        println!("declared in {:?}", began.elapsed());
    }
    let listed = shared_rabbitmq().ctl(&["-q", "list_queues", "-p", "again", "name"]);
    let queues = listed.lines().filter(|line| line.starts_with("dq.v1.")).count();
    // The ladder, the orphans, the dead, the log, and one ready queue.
    assert_eq!(queues, 292 + 3 + 1, "{listed}");
    assert!(listed.contains("dq.v1.q.orders%dnew %h1"), "{listed}");

    config.topology = TopologyMode::Passive;
    let (link, topology) = super::rig::topology(&config);
    topology.prepare().await.unwrap();
    topology.ready(&queue("orders.new #1")).await.unwrap();
    let error = topology.ready(&queue("mail")).await.unwrap_err();
    assert_told(&error, ErrorKind::Config, &["queue dq.v1.q.mail", "`topology`"]);

    let channel = link.channel("test").await.unwrap();
    for name in ["dq.v1.l1.7", "dq.v1.log"] {
        channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.unwrap();
    }
    let error = topology.prepare().await.unwrap_err();
    assert_told(&error, ErrorKind::Config, &["queue dq.v1.log, queue dq.v1.l1.7"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_host_is_told_to_lack_all_but_not_at_length() {
    let mut config = config("empty");
    config.topology = TopologyMode::Passive;
    let (_link, topology) = topology(&config);
    let error = topology.prepare().await.unwrap_err();
    assert_told(
        &error,
        ErrorKind::Config,
        &["exchange dq.v1.orphan, queue dq.v1.orphan", "and more"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_declared_otherwise_is_told_with_both_values() {
    let mut config = config("otherwise");
    config.queues = QueueKind::Classic;
    let (link, topology) = topology(&config);
    topology.prepare().await.unwrap();

    config.queues = QueueKind::Quorum;
    let (_link, quorum) = super::rig::topology(&config);
    let error = quorum.prepare().await.unwrap_err();
    let words = ["queue 'dq.v1.orphan'", "`x-queue-type`", "classic", "quorum", "`prefix`"];
    assert_told(&error, ErrorKind::Incompatible, &words);

    config.queues = QueueKind::Classic;
    config.log_size_mib = 32;
    let (_link, small) = super::rig::topology(&config);
    let error = small.prepare().await.unwrap_err();
    let words = ["queue 'dq.v1.log'", "`x-max-length-bytes`", "1073741824", "33554432"];
    assert_told(&error, ErrorKind::Incompatible, &words);

    let channel = link.channel("test").await.unwrap();
    let options = QueueDeclareOptions::durable();
    channel.queue_declare("dq.v1.q.mail".into(), options, FieldTable::default()).await.unwrap();
    let error = topology.ready(&queue("mail")).await.unwrap_err();
    assert_told(&error, ErrorKind::Incompatible, &["x-dead-letter-exchange", "none", "dq.v1.dead"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_without_the_plugin_says_so() {
    let mut config = config("plugin");
    config.topology = TopologyMode::Plugin;
    let (link, topology) = topology(&config);
    let error = topology.prepare().await.unwrap_err();
    assert_told(&error, ErrorKind::Incompatible, &["rabbitmq_delayed_message_exchange"]);
    // Brokers before 4.0 end the whole connection for that.
    link.channel("test").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn several_processes_may_declare_at_once() {
    let config = config("quorum");
    let began = std::time::Instant::now();
    let several = (0..3).map(|_| async {
        let (_link, topology) = topology(&config);
        topology.prepare().await?;
        topology.ready(&queue("mail")).await
    });
    for declared in futures_util::future::join_all(several).await {
        declared.unwrap();
    }
    println!("declared in {:?}", began.elapsed());
}
