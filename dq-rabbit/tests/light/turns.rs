//! Light processes that find at the same moment that nobody serves: one of them opens the log.

use std::sync::Arc;
use std::time::Duration;

use dq_core::Backend;
use dq_core::config::Secret;
use dq_rabbit::{RabbitBackend, RabbitConfig};
use dq_servers::{RabbitMq, shared_rabbitmq};
use dq_testkit::faults::TcpProxy;
use dq_testkit::fixture::{TIMEOUT, blocking, in_an_hour, job, retry, stats, wait_until};
use futures_util::future::join_all;
use lapin::Connection;
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;

use crate::fixture::{self, amqp_channel, connect, full, light, servers, with_silent_server};

const TURN: &str = "dq.v1.replies.turn";

const CALLERS: usize = 5;

/// Settings that let processes wait for each other, however slow this machine is.
fn patient(mut config: RabbitConfig) -> RabbitConfig {
    config.response_timeout = Duration::from_secs(120);
    config
}

fn config(vhost: &str) -> RabbitConfig {
    patient(fixture::config(vhost))
}

async fn lights(config: &RabbitConfig) -> Vec<Arc<RabbitBackend>> {
    let mut callers = Vec::new();
    for _ in 0..CALLERS {
        callers.push(light(config).await);
    }
    callers
}

/// All schedule a job at the same time, and repeat the call until it succeeds.
async fn schedule_all(callers: &[Arc<RabbitBackend>]) {
    let calls = callers.iter().map(async |caller| {
        let job = in_an_hour(job("q"));
        let _ = retry(|| caller.schedule(vec![job.clone()])).await;
    });
    join_all(calls).await;
}

fn count_replicas(callers: &[Arc<RabbitBackend>]) -> usize {
    callers.iter().filter(|caller| !caller.is_light()).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_processes_that_connect_opens_the_log() {
    let config = config("light-first");
    let connected = join_all((0..CALLERS).map(|_| connect(&config))).await;
    let callers: Vec<_> = connected.into_iter().map(Result::unwrap).collect();
    assert_eq!(count_replicas(&callers), 1);
    schedule_all(&callers).await;
    assert_eq!(count_replicas(&callers), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_light_process_opens_the_log_when_the_last_server_ends() {
    let config = config("light-turns");
    let server = full(&config).await;
    let callers = lights(&config).await;
    schedule_all(&callers).await;
    server.close().await.unwrap();
    schedule_all(&callers).await;
    assert_eq!(count_replicas(&callers), 1, "it serves the others");
    assert_eq!(stats(&*callers[0], "q").await.scheduled, 2 * CALLERS as u64);
}

/// As after the restart of the broker: sessions are lost, and the processes that serve come back
/// later than the light ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_light_process_waits_for_the_servers_when_it_has_lost_its_session() {
    let config = config("light-patience");
    let first = full(&config).await;
    wait_until("it serves", async || servers(&config).await == 1).await;
    let proxy = TcpProxy::to(shared_rabbitmq().address()).await;
    let mut by_proxy = config.clone();
    by_proxy.url = Secret::new(proxy.url(config.url.expose()));
    let caller = light(&by_proxy).await;
    first.close().await.unwrap();
    proxy.cut_request_after(0);
    // The first attempt loses the connection; the next ones find that nobody serves.
    let call = {
        let caller = Arc::clone(&caller);
        tokio::spawn(async move { retry(|| caller.schedule(vec![in_an_hour(job("q"))])).await })
    };
    let _second = full(&config).await;
    call.await.unwrap();
    assert!(caller.is_light());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn light_processes_stay_light_when_the_broker_restarts() {
    let broker = RabbitMq::start();
    let config = patient(fixture::config_for(&broker.url()));
    let _server = full(&config).await;
    wait_until("it serves", async || servers(&config).await == 1).await;
    let callers = lights(&config).await;
    schedule_all(&callers).await;
    let broker = Arc::new(broker);
    for _ in 0..2 {
        let restarting = Arc::clone(&broker);
        let restart = blocking(move || {
            restarting.stop();
            restarting.restart();
        });
        tokio::join!(restart, schedule_all(&callers));
        schedule_all(&callers).await;
    }
    assert_eq!(count_replicas(&callers), 0);
}

/// Takes the turn to open the log, as another process does.
async fn hold_turn(config: &RabbitConfig) -> Connection {
    let (connection, channel) = amqp_channel(config).await;
    let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(TURN.into(), options, FieldTable::default()).await.unwrap();
    connection
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_connects_and_gets_no_reply_waits_for_its_turn() {
    let mut config = config("light-connects");
    config.response_timeout = Duration::from_secs(10);
    let (first, mut silent) = with_silent_server(&config).await;
    first.close().await.unwrap();
    let turn = hold_turn(&config).await;
    let connecting = {
        let config = config.clone();
        tokio::spawn(async move { connect(&config).await })
    };
    silent.take_new().await;
    // It gives up waiting for the reply meanwhile.
    tokio::time::sleep(config.response_timeout * 2).await;
    assert!(!connecting.is_finished());
    silent.die().await;
    let second = full(&config).await;
    wait_until("it serves", async || servers(&config).await == 1).await;
    turn.close(200, "done".into()).await.unwrap();
    assert!(connecting.await.unwrap().unwrap().is_light(), "the other process serves it");
    second.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_may_not_read_the_queue_of_turns_opens_the_log_at_once() {
    let mut config = config("light-unreadable");
    // It would wait for its turn for this long, several times.
    config.response_timeout = TIMEOUT / 3;
    let server = full(&config).await;
    wait_until("it serves", async || servers(&config).await == 1).await;
    let broker = shared_rabbitmq();
    broker.ctl(&["add_user", "unturned", "secret"]);
    let all_but_turn = r"^dq\.v1\.(?!replies\.turn)";
    let permissions = [".*", ".*", all_but_turn];
    let user = ["set_permissions", "-p", "light-unreadable", "unturned"];
    broker.ctl(&[&user[..], &permissions[..]].concat());
    let mut restricted = config.clone();
    let url = format!("amqp://unturned:secret@{}/light-unreadable", broker.address());
    restricted.url = Secret::new(url);
    let caller = connect(&restricted).await.unwrap();
    assert!(caller.is_light());
    server.close().await.unwrap();
    let call = retry(|| caller.schedule(vec![in_an_hour(job("q"))]));
    let _ = tokio::time::timeout(TIMEOUT, call).await.expect("it does not wait for others");
    assert!(!caller.is_light());
}
