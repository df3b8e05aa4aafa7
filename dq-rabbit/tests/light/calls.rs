//! What a light process gets for its calls, and when it opens the log.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::{Environment, Secret};
use dq_core::{
    Backend, Cancelled, Due, ErrorKind, HistoryLimit, HistoryLimits, JobState, NewJob, Operation,
    Reschedule, Rescheduled, Scheduled,
};
use dq_rabbit::{RabbitBackend, TopologyMode};
use dq_servers::shared_rabbitmq;
use dq_testkit::faults::TcpProxy;
use dq_testkit::fixture::{
    TIMEOUT, by_id, claim_for, in_an_hour, job, keyed, poll, queue, retry, stats, wait_until,
};
use futures_util::StreamExt;
use lapin::BasicProperties;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::FieldTable;

use crate::fixture::{
    REQUESTS, SilentServer, amqp_channel, assert_unknown, config, connect, framed, full, light,
    servers, spawn_schedule, with_silent_server,
};

async fn claim_one(backend: &dyn Backend, name: &str) -> usize {
    claim_for(backend, &[name], 1, Duration::from_secs(30)).await.unwrap().jobs.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_light_process_gets_definite_results_without_a_replica() {
    let config = config("light-calls");
    let server = full(&config).await;
    let caller = light(&config).await;
    let job = in_an_hour(job("q"));
    for _ in 0..2 {
        let scheduled = caller.schedule(vec![job.clone()]).await.unwrap();
        assert!(matches!(scheduled[..], [Scheduled::Created(receipt)] if receipt.id == job.id));
    }
    let view = caller.get(&by_id(&job)).await.unwrap().unwrap();
    let expected = server.get(&by_id(&job)).await.unwrap().unwrap();
    assert_eq!(view, expected, "with payload and headers");
    assert_eq!((view.state, &view.job.payload), (JobState::Scheduled, &job.payload));
    assert_eq!(stats(&*caller, "q").await, stats(&*server, "q").await);
    let later = Reschedule { job: by_id(&job), due: Due::After(Duration::from_secs(7_200)) };
    let moved = caller.reschedule(&[later]).await.unwrap();
    assert!(matches!(moved[..], [Rescheduled::Moved(_)]), "{moved:?}");
    let edges = [view.job.created, view.job.created + Duration::from_secs(10_000)];
    assert_eq!(caller.forecast(&queue("q"), &edges).await.unwrap(), [1]);
    let paused = caller.operate(Operation::Pause { queue: &queue("q") }).await.unwrap();
    assert_eq!(paused.affected, 1);
    assert!(stats(&*server, "q").await.paused);
    assert_eq!(caller.runners().await.unwrap(), []);
    assert_eq!(caller.cancel(&[by_id(&job)]).await.unwrap(), [Cancelled::Cancelled]);
    assert_eq!(caller.cancel(&[by_id(&job)]).await.unwrap(), [Cancelled::NotFound]);
    assert!(caller.is_light(), "none of these needs a replica");

    // A claim does.
    assert_eq!(claim_one(&*caller, "q").await, 0);
    assert!(!caller.is_light());
    wait_until("both serve", async || servers(&config).await == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_many_megabytes_is_scheduled_in_order() {
    let config = config("light-pages");
    let _server = full(&config).await;
    let caller = light(&config).await;
    let with_payload = |mut job: NewJob| {
        job.payload = vec![7; 300_000].into();
        in_an_hour(job)
    };
    let mut jobs: Vec<_> = (0..12).map(|_| with_payload(job("q"))).collect();
    // The first of these two keeps its key, although they are in different requests.
    jobs[0] = with_payload(keyed("q", "k"));
    jobs[11] = with_payload(keyed("q", "k"));
    let scheduled = caller.schedule(jobs.clone()).await.unwrap();
    assert!(scheduled[..11].iter().all(Scheduled::is_stored), "{scheduled:?}");
    assert!(matches!(scheduled[11], Scheduled::Kept(receipt) if receipt.id == jobs[0].id));
    assert!(caller.is_light());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_a_served_call_keep_their_kind_and_remedy() {
    let config = config("light-errors");
    let mut small = config.clone();
    small.log_size_mib = 16;
    let server = full(&small).await;
    let caller = light(&small).await;
    let large = || {
        let mut job = in_an_hour(job("q"));
        job.payload = vec![7; 256 * 1024].into();
        vec![job]
    };
    poll("the log is full", async || server.schedule(large()).await.err()).await;
    let (here, there) = tokio::join!(server.schedule(large()), caller.schedule(large()));
    let (here, there) = (here.unwrap_err(), there.unwrap_err());
    assert_eq!((here.kind(), there.kind()), (ErrorKind::Full, ErrorKind::Full));
    assert_eq!(here.to_string(), there.to_string());
    assert_eq!(here.remedy_text(), there.remedy_text());
    assert!(caller.is_light(), "an error of the call is a reply");
    // Calls that end jobs pass.
    assert_eq!(caller.cancel(&[by_id(&job("q"))]).await.unwrap(), [Cancelled::NotFound]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_nobody_serves_opens_the_log_and_serves_others() {
    let mut config = config("light-alone");
    // The second process opens the log while its request waits.
    config.response_timeout = Duration::from_secs(120);
    let alone = connect(&config).await.unwrap();
    assert!(!alone.is_light(), "nobody else has a replica");
    let caller = light(&config).await;
    let first = in_an_hour(job("q"));
    assert!(caller.schedule(vec![first.clone()]).await.unwrap()[0].is_stored());
    assert!(caller.is_light());

    // The server leaves: its last request is complete, and the next one is served by the caller.
    alone.close().await.unwrap();
    let second = in_an_hour(job("q"));
    assert!(caller.schedule(vec![second]).await.unwrap()[0].is_stored());
    assert!(!caller.is_light());
    assert_eq!(stats(&*caller, "q").await.scheduled, 2);
    let next = light(&config).await;
    assert_eq!(stats(&*next, "q").await.scheduled, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_not_executed_twice_when_its_server_dies() {
    let config = config("light-death");
    let (caller, mut silent) = with_silent_server(&config).await;
    let job = in_an_hour(job("q"));
    let call = spawn_schedule(&caller, &job);
    silent.take_new().await;
    let server = full(&config).await;
    wait_until("another process serves", async || servers(&config).await == 2).await;
    // The other server cannot know whether this one has executed the request.
    silent.die().await;
    assert_unknown(call.await.unwrap());
    assert_eq!(server.get(&by_id(&job)).await.unwrap(), None);
    // As the contract says, repeating it is safe.
    assert!(matches!(caller.schedule(vec![job]).await.unwrap()[..], [Scheduled::Created(_)]));

    // A read is repeated without the caller noticing.
    let mut silent = SilentServer::start(&config).await;
    let reads: Vec<_> = (0..4)
        .map(|_| {
            let caller = Arc::clone(&caller);
            tokio::spawn(async move { stats(&*caller, "q").await.scheduled })
        })
        .collect();
    silent.take().await;
    silent.die().await;
    for read in reads {
        assert_eq!(read.await.unwrap(), 1);
    }
    assert!(caller.is_light());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_not_executed_after_its_caller_has_given_up() {
    let mut config = config("light-expiry");
    config.response_timeout = Duration::from_secs(4);
    let (caller, mut silent) = with_silent_server(&config).await;
    let given_up = in_an_hour(job("q"));
    let call = spawn_schedule(&caller, &given_up);
    silent.take().await;
    assert_unknown(call.await.unwrap());
    // Its request goes back to the queue, where it expires.
    silent.die().await;
    config.response_timeout = Duration::from_secs(20);
    let server = full(&config).await;
    wait_until("it serves", async || servers(&config).await == 1).await;
    // This request comes after it.
    let next = in_an_hour(job("q"));
    let _ = retry(|| caller.schedule(vec![next.clone()])).await;
    assert_eq!(server.get(&by_id(&given_up)).await.unwrap(), None);
    assert!(server.get(&by_id(&next)).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_nobody_serves_and_that_cannot_open_the_log_says_why() {
    let mut config = config("light-forbidden");
    config.response_timeout = Duration::from_secs(4);
    let server = full(&config).await;
    wait_until("it serves", async || servers(&config).await == 1).await;
    let broker = shared_rabbitmq();
    broker.ctl(&["add_user", "caller", "secret"]);
    let own = r"^dq\.v1\.(requests$|replies\.)";
    broker.ctl(&["set_permissions", "-p", "light-forbidden", "caller", own, own, own]);
    let mut restricted = config.clone();
    restricted.url =
        Secret::new(format!("amqp://caller:secret@{}/light-forbidden", broker.address()));
    restricted.topology = TopologyMode::Passive;
    let caller = light(&restricted).await;
    let job = in_an_hour(job("q"));
    assert!(retry(|| caller.schedule(vec![job.clone()])).await[0].is_stored());

    server.close().await.unwrap();
    // Another process might have taken this request.
    assert_unknown(caller.schedule(vec![job.clone()]).await);
    let error = poll("an error that is not retryable", async || {
        let error = caller.schedule(vec![job.clone()]).await.unwrap_err();
        (!error.is_retryable()).then_some(error)
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("dq.v1.log"), "{error}");
    assert!(error.remedy_text().is_some(), "{error}");

    // It is served again as soon as somebody does.
    let _server = full(&config).await;
    wait_until("it serves", async || servers(&config).await == 1).await;
    assert!(retry(|| caller.schedule(vec![job.clone()])).await[0].is_stored());
    assert!(caller.is_light());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_gets_no_replies_opens_the_log() {
    let mut config = config("light-silence");
    config.response_timeout = Duration::from_secs(4);
    let (caller, mut silent) = with_silent_server(&config).await;
    let job = in_an_hour(job("q"));
    assert_unknown(caller.schedule(vec![job.clone()]).await);
    silent.take().await;
    assert_unknown(caller.schedule(vec![job.clone()]).await);
    poll("the caller opens the log", async || caller.schedule(vec![job.clone()]).await.ok()).await;
    assert!(!caller.is_light());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_that_do_not_match_refuse_requests_and_the_caller_opens_the_log() {
    let config = config("light-versions");
    let (caller, mut silent) = with_silent_server(&config).await;
    let job = in_an_hour(job("q"));
    let call = spawn_schedule(&caller, &job);
    let request = silent.take().await;
    assert_eq!(request.data[0], 1, "the version");
    silent.reply(&request, &framed(9, &[1, 2, 3])).await;
    assert!(call.await.unwrap().unwrap()[0].is_stored());
    assert!(!caller.is_light());
    silent.die().await;

    // A request of another version is refused in the server's own version.
    let (_connection, channel) = amqp_channel(&config).await;
    let replies = channel
        .queue_declare("".into(), QueueDeclareOptions::exclusive(), FieldTable::default())
        .await
        .unwrap();
    let name = replies.name().clone();
    let (bind, arguments) = (QueueBindOptions::default(), FieldTable::default());
    channel.queue_bind(name.clone(), REQUESTS.into(), name.clone(), bind, arguments).await.unwrap();
    let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut consumer =
        channel.basic_consume(name.clone(), "".into(), options, arguments).await.unwrap();
    for (body, outcome, word) in [
        (framed(9, &[0]), 2, "incompatible"),
        (framed(1, &[99]), 2, "incompatible"),
        // It may be repeated.
        (framed(1, &[0])[1..].to_vec(), 1, "unavailable"),
    ] {
        let properties =
            BasicProperties::default().with_reply_to(name.clone()).with_correlation_id("7".into());
        let options = BasicPublishOptions::default();
        channel
            .basic_publish(REQUESTS.into(), REQUESTS.into(), options, &body, properties)
            .await
            .unwrap();
        let reply = tokio::time::timeout(TIMEOUT, consumer.next()).await;
        let reply = reply.expect("a reply arrives").unwrap().unwrap();
        assert_eq!(reply.properties.correlation_id().as_ref().unwrap().as_str(), "7");
        let text = String::from_utf8_lossy(&reply.data[10..]).into_owned();
        assert_eq!((reply.data[0], reply.data[9]), (1, outcome), "version and outcome: {text}");
        assert!(text.contains(word), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_light_process_survives_the_loss_of_its_connection() {
    let config = config("light-connection");
    let _server = full(&config).await;
    wait_until("it serves", async || servers(&config).await == 1).await;
    let proxy = TcpProxy::to(shared_rabbitmq().address()).await;
    let mut by_proxy = config.clone();
    by_proxy.url = Secret::new(proxy.url(config.url.expose()));
    let caller = light(&by_proxy).await;
    for cut in [TcpProxy::cut_request_after, TcpProxy::cut_reply_after] {
        // What the process or the broker still sends for an earlier call may be cut instead.
        wait_until("a cut hits the call", async || {
            let job = in_an_hour(job("q"));
            let _ = retry(|| caller.schedule(vec![job.clone()])).await;
            cut(&proxy, 1);
            let id = [by_id(&job)];
            let first = caller.cancel(&id).await;
            let again = retry(|| caller.cancel(&id)).await;
            assert_eq!(stats(&*caller, "q").await.scheduled, 0);
            match first {
                Ok(first) => {
                    let results = (first, again);
                    assert_eq!(results, (vec![Cancelled::Cancelled], vec![Cancelled::NotFound]));
                    false
                }
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    assert_eq!(again, [Cancelled::Cancelled], "the call was not sent: {error}");
                    false
                }
                unknown => {
                    assert_unknown(unknown);
                    true
                }
            }
        })
        .await;
    }
    assert!(caller.is_light());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_light_process_sets_the_limits_of_the_history() {
    let config = config("light-history");
    let _server = full(&config).await;
    let limit = HistoryLimit::new(1, Duration::from_secs(3_600));
    let environment = Environment::default().history(HistoryLimits::all(limit));
    wait_until("it serves", async || servers(&config).await == 1).await;
    let caller = RabbitBackend::connect(&config, &environment).await.unwrap();
    let jobs: Vec<_> = (0..3).map(|_| in_an_hour(job("q"))).collect();
    let _ = caller.schedule(jobs.clone()).await.unwrap();
    for job in &jobs {
        assert_eq!(caller.cancel(&[by_id(job)]).await.unwrap(), [Cancelled::Cancelled]);
    }
    let mut found = Vec::new();
    for job in &jobs {
        found.push(caller.get(&by_id(job)).await.unwrap().is_some());
    }
    assert_eq!(found, [false, false, true]);
    assert!(caller.is_light());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_may_not_declare_its_queue_of_replies_opens_the_log() {
    let config = config("light-permissions");
    let owner = full(&config).await;
    let _ = owner.schedule(vec![in_an_hour(job("q"))]).await.unwrap();
    wait_until("it serves", async || servers(&config).await == 1).await;
    let server = shared_rabbitmq();
    server.ctl(&["add_user", "light", "secret"]);
    let url = format!("amqp://light:secret@{}/light-permissions", server.address());
    let mut passive = config.clone();
    passive.url = Secret::new(url);
    passive.topology = TopologyMode::Passive;
    let all = r"^dq\.v1\.";
    for (configure, is_light) in [("", false), (r"^dq\.v1\.replies\.", true)] {
        server.ctl(&["set_permissions", "-p", "light-permissions", "light", configure, all, all]);
        let backend = retry(|| connect(&passive)).await;
        assert_eq!(backend.is_light(), is_light, "{configure}");
        assert!(backend.schedule(vec![in_an_hour(job("q"))]).await.unwrap()[0].is_stored());
        backend.close().await.unwrap();
    }

    // Why replies do not use the broker's direct reply-to: its answers go to the default exchange.
    let (_connection, channel) = amqp_channel(&passive).await;
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
    let key = "amq.rabbitmq.reply-to.of-another".into();
    let publishing = channel.basic_publish("".into(), key, options, b"", properties);
    let error = publishing.await.unwrap().await.unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_overlap_with_close_succeed_or_are_refused_as_closed() {
    let config = config("light-close");
    let _server = full(&config).await;
    for round in 0..20 {
        let caller = light(&config).await;
        let calls: Vec<_> = (0..40)
            .map(|pause| {
                let (caller, job) = (Arc::clone(&caller), in_an_hour(job("q")));
                tokio::spawn(async move {
                    for _ in 0..pause * round {
                        tokio::task::yield_now().await;
                    }
                    caller.schedule(vec![job]).await
                })
            })
            .collect();
        tokio::task::yield_now().await;
        caller.close().await.unwrap();
        for call in calls {
            if let Err(error) = call.await.unwrap() {
                assert_eq!(error.kind(), ErrorKind::Closed, "in round {round}: {error}");
            }
        }
    }
}
