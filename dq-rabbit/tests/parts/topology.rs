//! Declarations on a real broker.

use dq_core::ErrorKind;
use dq_servers::shared_rabbitmq;
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;

use super::fixture::{assert_error, config, declare_all, queue, topology};
use crate::config::{LadderKind, QueueKind, TopologyMode};

#[tokio::test(flavor = "multi_thread")]
async fn declaring_is_idempotent_and_passive_mode_names_missing_objects() {
    let mut config = config("again");
    config.queues = QueueKind::Classic;
    let (_connection, topology) = topology(&config);
    for _ in 0..2 {
        declare_all(&topology).await.unwrap();
        topology.declare_ready(&queue("orders.new #1")).await.unwrap();
        topology.restore().await.unwrap();
    }
    let listed = shared_rabbitmq().ctl(&["-q", "list_queues", "-p", "again", "name"]);
    let queues = listed.lines().filter(|line| line.starts_with("dq.v1.")).count();
    // The ladder; orphans, dead letters and directory; one ready queue.
    assert_eq!(queues, 292 + 3 + 1, "{listed}");
    assert!(listed.contains("dq.v1.q.orders%dnew %h1"), "{listed}");

    config.topology = TopologyMode::Passive;
    let (connection, topology) = super::fixture::topology(&config);
    declare_all(&topology).await.unwrap();
    topology.declare_ready(&queue("orders.new #1")).await.unwrap();
    assert_error(
        topology.declare_ready(&queue("mail")).await,
        ErrorKind::Config,
        &["queue dq.v1.q.mail", "`topology`"],
    );

    let channel = connection.channel("test").await.unwrap().inner().clone();
    for name in ["dq.v1.l1.7", "dq.v1.log"] {
        channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.unwrap();
    }
    assert_error(
        declare_all(&topology).await,
        ErrorKind::Config,
        &["queue dq.v1.log, queue dq.v1.l1.7"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn argument_mismatches_name_both_values() {
    let mut config = config("otherwise");
    config.queues = QueueKind::Classic;
    let (connection, topology) = topology(&config);
    declare_all(&topology).await.unwrap();

    config.queues = QueueKind::Quorum;
    let (_connection, quorum) = super::fixture::topology(&config);
    let words = ["queue 'dq.v1.orphan'", "`x-queue-type`", "classic", "quorum", "`prefix`"];
    assert_error(declare_all(&quorum).await, ErrorKind::Incompatible, &words);

    config.queues = QueueKind::Classic;
    config.log_size_mib = 32;
    let (_connection, small) = super::fixture::topology(&config);
    declare_all(&small).await.expect("the size of the log is no argument");

    let channel = connection.channel("test").await.unwrap().inner().clone();
    let options = QueueDeclareOptions::durable();
    channel.queue_declare("dq.v1.q.mail".into(), options, FieldTable::default()).await.unwrap();
    let words = ["x-dead-letter-exchange", "none", "dq.v1.dead"];
    assert_error(topology.declare_ready(&queue("mail")).await, ErrorKind::Incompatible, &words);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_plugin_is_reported() {
    let mut config = config("plugin");
    config.topology = TopologyMode::Plugin;
    let (connection, topology) = topology(&config);
    assert_error(
        declare_all(&topology).await,
        ErrorKind::Incompatible,
        &["rabbitmq_delayed_message_exchange"],
    );
    // Brokers before 4.0 close the whole connection.
    connection.channel("test").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn several_processes_can_declare_concurrently() {
    let config = config("quorum");
    let several = (0..3).map(|_| async {
        let (_connection, topology) = topology(&config);
        declare_all(&topology).await?;
        topology.declare_ready(&queue("mail")).await
    });
    for declared in futures_util::future::join_all(several).await {
        declared.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_ladder_there_are_few_queues_and_leaders_are_spread() {
    let mut config = config("no-ladder");
    config.ladder = LadderKind::None;
    let (_connection, topology) = topology(&config);
    declare_all(&topology).await.unwrap();
    topology.declare_ready(&queue("mail")).await.unwrap();
    let listed =
        shared_rabbitmq().ctl(&["-q", "list_queues", "-p", "no-ladder", "name", "arguments"]);
    let queues: Vec<_> = listed.lines().filter(|line| line.starts_with("dq.v1.")).collect();
    assert_eq!(queues.len(), 3 + 1, "{listed}");
    for queue in queues {
        assert!(queue.contains("x-queue-leader-locator") && queue.contains("balanced"), "{queue}");
    }
}
