//! What limits a request: its time, the number of its items, the size of the queue; and what a session
//! that does not open leaves behind.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::Secret;
use dq_core::{Backend, Cancelled, ErrorKind};
use dq_rabbit::TopologyMode;
use dq_servers::shared_rabbitmq;
use dq_testkit::faults::TcpProxy;
use dq_testkit::fixture::{by_id, in_an_hour, job, retry, wait_until};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueuePurgeOptions};
use lapin::{BasicProperties, Confirmation};

use crate::fixture::{
    REQUESTS, SilentServer, amqp_channel, assert_unknown, config, framed, full, light, servers,
    with_silent_server,
};
use crate::kills::ServingProcess;

/// The caller waits for 2 s, the process that serves for 20 s: of the settings it takes only the URL. Not
/// much longer, since the broker drops a connection without heartbeats after some 20 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_suspended_executes_nothing_that_its_caller_has_given_up() {
    const VHOST: &str = "light-suspended";
    let mut config = config(VHOST);
    config.response_timeout = Duration::from_secs(2);
    let server = ServingProcess::start(&config).await;
    let caller = light(&config).await;
    let unacknowledged = |count: u32| {
        let columns = ["name", "messages_unacknowledged"];
        let listed =
            shared_rabbitmq().ctl(&["-q", "list_queues", "-p", VHOST, columns[0], columns[1]]);
        listed.lines().any(|line| line == format!("{REQUESTS}\t{count}"))
    };
    for attempt in 1.. {
        // The caller has its first reply before the process acknowledges the request.
        wait_until("nothing is being served", async || unacknowledged(0)).await;
        server.signal("STOP");
        let given_up = in_an_hour(job("q"));
        assert_unknown(caller.schedule(vec![given_up.clone()]).await);
        // The broker shares this machine with other tests, and may deliver it only now. It counts as
        // given up for half of the caller's timeout after that.
        wait_until("the suspended process has the request", async || unacknowledged(1)).await;
        tokio::time::sleep(config.response_timeout / 2).await;
        assert!(unacknowledged(1), "the broker has not dropped the connection");
        server.signal("CONT");
        // This request comes after it.
        let next = in_an_hour(job("q"));
        let _ = retry(|| caller.schedule(vec![next.clone()])).await;
        let (given_up, next) = (by_id(&given_up), by_id(&next));
        assert!(retry(|| caller.get(&next)).await.is_some());
        if retry(|| caller.get(&given_up)).await.is_none() {
            break;
        }
        // On a busy machine, the process may read it more than a second after it was resumed, and then
        // takes it for a new one.
        assert!(attempt < 4, "what was given up is executed each time");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_list_takes_several_requests() {
    let config = config("light-lists");
    let (caller, mut silent) = with_silent_server(&config).await;
    let jobs: Vec<_> = (0..2_500).map(|_| by_id(&job("q"))).collect();
    let call = {
        let caller = Arc::clone(&caller);
        tokio::spawn(async move { caller.cancel(&jobs).await })
    };
    // A reply is `Executed(Cancelled([Cancelled; number]))`: a byte for each of the first two
    // variants, the number as a varint, and a zero for each result.
    for (number, length) in [(1_000, [0xe8, 7]), (1_000, [0xe8, 7]), (500, [0xf4, 3])] {
        let request = silent.take().await;
        let found = vec![0; number];
        silent.reply(&request, &framed(1, &[&[0, 1][..], &length, &found].concat())).await;
        silent.ack(&request).await;
    }
    assert_eq!(call.await.unwrap().unwrap(), vec![Cancelled::Cancelled; 2_500]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_the_broker_refuses_may_have_been_executed() {
    let config = config("light-refused");
    let (caller, _silent) = with_silent_server(&config).await;
    let (_connection, channel) = amqp_channel(&config).await;
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let body = vec![0; 4 * 1024 * 1024];
    // The queue holds 64 MiB.
    for number in 0.. {
        assert!(number < 20, "the queue takes too much");
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let publishing =
            channel.basic_publish(REQUESTS.into(), REQUESTS.into(), options, &body, properties);
        if let Confirmation::Nack(_) = publishing.await.unwrap().await.unwrap() {
            break;
        }
    }
    // The broker also refuses a request if its own process for the queue ends, which may have
    // delivered the request before.
    assert_unknown(caller.schedule(vec![in_an_hour(job("q"))]).await);
    let error = caller.stats(&[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("too many requests"), "{error}");
    channel.queue_purge(REQUESTS.into(), QueuePurgeOptions::default()).await.unwrap();
}

/// Calls of a process that may declare queues of replies, and not bind them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_does_not_open_leaves_no_queue() {
    const VHOST: &str = "light-leaks";
    let mut config = config(VHOST);
    config.response_timeout = Duration::from_secs(4);
    let _server = full(&config).await;
    wait_until("it serves", async || servers(&config).await == 1).await;
    let broker = shared_rabbitmq();
    broker.ctl(&["add_user", "leaks", "secret"]);
    let [own, requests] = [r"^dq\.v1\.(requests$|replies\.)", r"^dq\.v1\.requests$"];
    broker.ctl(&["set_permissions", "-p", VHOST, "leaks", own, own, own]);
    let url = format!("amqp://leaks:secret@{}/{VHOST}", broker.address());
    let proxy = TcpProxy::to(broker.address()).await;
    let mut restricted = config.clone();
    restricted.url = Secret::new(proxy.url(&url));
    restricted.topology = TopologyMode::Passive;
    let caller = light(&restricted).await;

    broker.ctl(&["set_permissions", "-p", VHOST, "leaks", own, requests, own]);
    // The first call loses the connection.
    proxy.cut_request_after(0);
    let mut failures = 0;
    while failures < 3 {
        let error = caller.schedule(vec![in_an_hour(job("q"))]).await.unwrap_err();
        failures += usize::from(error.kind() == ErrorKind::Config);
        assert!(failures > 0 || error.is_retryable(), "{error}");
    }
    wait_until("the queues of replies are deleted", async || {
        !broker.ctl(&["list_queues", "-p", VHOST, "name"]).contains("replies")
    })
    .await;
    assert!(caller.is_light());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_takes_requests_is_found_by_check() {
    let config = config("light-foreign");
    let server = full(&config).await;
    let is_found = async || {
        server.check().await.iter().any(|finding| finding.code == "rabbitmq.foreign-consumer")
    };
    wait_until("it serves", async || servers(&config).await == 1).await;
    assert!(!is_found().await);
    let foreign = SilentServer::start(&config).await;
    wait_until("the other consumer is found", is_found).await;
    foreign.die().await;
    wait_until("nothing is found", async || !is_found().await).await;
}
