//! RabbitMQ nodes that are one cluster: cut off, killed, and restarted in turn.

use std::thread;
use std::time::{Duration, Instant};

use dq_servers::{RabbitCluster, RabbitMq};

#[test]
fn the_majority_goes_on_without_those_cut_off() {
    let cluster = RabbitCluster::start(3);
    assert_eq!(cluster.urls().len(), 3);
    let nodes = cluster.nodes();
    declare(&nodes[0], "q");
    nodes.iter().for_each(until_confirmed);
    let led = cluster.leader(&nodes[0], "/", "q");
    let [other, third] = [(led + 1) % 3, (led + 2) % 3];

    cluster.partition(led);
    until_confirmed(&nodes[other]);
    assert_ne!(cluster.leader(&nodes[third], "/", "q"), led);
    assert_eq!(publish(&nodes[led]).as_deref(), Ok("timeout"));
    cluster.heal();
    nodes.iter().for_each(until_confirmed);

    nodes[third].kill();
    until_confirmed(&nodes[other]);
    nodes[third].restart();
    cluster.wait_until_healthy();
    cluster.rolling_restart();
    until_confirmed(&nodes[third]);
    cluster.crash();
    nodes.iter().for_each(until_confirmed);
}

fn declare(rabbit: &RabbitMq, queue: &str) {
    rabbit.eval(&format!(
        "{{new, _}} = rabbit_amqqueue:declare({{resource, <<\"/\">>, queue, <<\"{queue}\">>}}, \
         true, false, [{{<<\"x-queue-type\">>, longstr, <<\"quorum\">>}}], none, <<\"dq\">>), ok"
    ));
}

/// Until there is a new leader, what is published is refused, and a node may have nothing to say.
fn until_confirmed(rabbit: &RabbitMq) {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let published = publish(rabbit);
        if published.as_deref() == Ok("true") {
            return;
        }
        assert!(Instant::now() < deadline, "{}: {published:?}", rabbit.node());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Publishes a message to the queue `q` by a client inside the node: is it confirmed?
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
