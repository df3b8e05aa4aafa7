//! A RabbitMQ cluster: partitions, killed nodes and rolling restarts.

use std::thread;
use std::time::{Duration, Instant};

use dq_servers::{RabbitCluster, RabbitMq};

/// Also tests a killed node and a rolling restart: one test, because a cluster starts slowly.
#[test]
fn the_majority_keeps_working_during_a_partition() {
    let cluster = RabbitCluster::start(3);
    let nodes = cluster.nodes();
    declare(&nodes[0], "q");
    nodes.iter().for_each(wait_until_confirmed);
    let leader = cluster.leader(&nodes[0], "/", "q");
    let [other, third] = [(leader + 1) % 3, (leader + 2) % 3];

    cluster.partition(leader);
    wait_until_confirmed(&nodes[other]);
    assert_ne!(cluster.leader(&nodes[third], "/", "q"), leader);
    assert_eq!(publish(&nodes[leader]).as_deref(), Ok("timeout"));
    cluster.heal();
    nodes.iter().for_each(wait_until_confirmed);

    nodes[third].kill();
    wait_until_confirmed(&nodes[other]);
    nodes[third].restart();
    cluster.wait_until_healthy();
    cluster.rolling_restart();
    wait_until_confirmed(&nodes[third]);
}

fn declare(rabbit: &RabbitMq, queue: &str) {
    rabbit.eval(&format!(
        "{{new, _}} = rabbit_amqqueue:declare({{resource, <<\"/\">>, queue, <<\"{queue}\">>}}, \
         true, false, [{{<<\"x-queue-type\">>, longstr, <<\"quorum\">>}}], none, <<\"dq\">>), ok"
    ));
}

/// Publishes until a message is confirmed: without a leader, messages are rejected, and a node may
/// not reply.
fn wait_until_confirmed(rabbit: &RabbitMq) {
    let deadline = Instant::now() + Duration::from_secs(240);
    loop {
        let published = publish(rabbit);
        if published.as_deref() == Ok("true") {
            return;
        }
        assert!(Instant::now() < deadline, "{}: {published:?}", rabbit.node());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Publishes a message to the queue `q` with a client inside the node. Returns "true" if it is
/// confirmed, "false" if it is rejected, or "timeout".
fn publish(rabbit: &RabbitMq) -> Result<String, String> {
    rabbit.try_eval(
        "{ok, _} = application:ensure_all_started(amqp_client), \
         {ok, Connection} = amqp_connection:start({amqp_params_direct, <<\"dq\">>, \
         <<\"secret\">>, <<\"/\">>, node(), none, []}), \
         {ok, Channel} = amqp_connection:open_channel(Connection), \
         {'confirm.select_ok'} = amqp_channel:call(Channel, {'confirm.select', false}), \
         Properties = list_to_tuple(['P_basic' | lists:duplicate(14, undefined)]), \
         ok = amqp_channel:call(Channel, {'basic.publish', 0, <<>>, <<\"q\">>, true, false}, \
         {amqp_msg, Properties, <<\"x\">>}), \
         Confirmed = amqp_channel:wait_for_confirms(Channel, 3), \
         exit(Connection, kill), Confirmed",
    )
}
