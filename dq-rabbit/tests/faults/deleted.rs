//! Queues and exchanges that are deleted while they are in use.

use std::sync::Arc;
use std::time::Duration;

use dq_core::{Backend, Cancelled, NewJob, QueueStats, Scheduled};
use dq_rabbit::RabbitConfig;
use lapin::options::ExchangeDeleteOptions;

use crate::fixture::{
    after, amqp_client, by_id, config, delete_queues, in_an_hour, job, open, pass_marker, publish,
    queue, queue_exists, retry, start_runner, stats, take_message, wait_until, wait_until_done,
};

async fn delete_exchange(config: &RabbitConfig, name: &str) {
    let (_connection, channel) = amqp_client(config.url.expose()).await;
    channel.exchange_delete(name.into(), ExchangeDeleteOptions::default()).await.unwrap();
}

/// From `millis` on, 20 ms apart.
async fn schedule_jobs(backend: &Arc<dyn Backend>, millis: u64) -> Vec<NewJob> {
    let jobs: Vec<_> = (0..30).map(|n| after(millis + 20 * n, job("q"))).collect();
    retry(|| backend.schedule(jobs.clone())).await;
    jobs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_queues_loses_no_job() {
    let config = config("queues");
    let backend = open(&config).await;
    let mut runner = start_runner(&backend, "q").await;
    let mut jobs = schedule_jobs(&backend, 3_000).await;
    // The last three are the ladder queues in which the jobs wait.
    let names = ["q.q", "dead", "orphan", "l0.1", "l0.2", "l0.3"];
    let names = names.map(|name| format!("dq.v1.{name}"));
    delete_queues(&config, &names.each_ref().map(String::as_str)).await;
    jobs.extend(schedule_jobs(&backend, 2_000).await);
    runner.expect_each_once(&jobs).await;
    for name in &names {
        wait_until(name, async || queue_exists(&config, name).await).await;
    }
    // Only the consumer uses these, and it notices without a call.
    delete_queues(&config, &["dq.v1.q.q", "dq.v1.dead"]).await;
    for name in ["dq.v1.q.q", "dq.v1.dead"] {
        wait_until(name, async || queue_exists(&config, name).await).await;
    }
    let jobs = schedule_jobs(&backend, 1_500).await;
    runner.expect_each_once(&jobs).await;
    assert_eq!(stats(&*backend, "q").await.totals.unwrap().created, 90);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_exchanges_are_declared_again() {
    let config = config("exchanges");
    let backend = open(&config).await;
    let mut runner = start_runner(&backend, "q").await;
    for exchange in ["dq.v1.generations", "dq.v1.l0", "dq.v1.due", "dq.v1.l1"] {
        let mut jobs = schedule_jobs(&backend, 2_500).await;
        delete_exchange(&config, exchange).await;
        jobs.extend(schedule_jobs(&backend, 1_500).await);
        runner.expect_each_once(&jobs).await;
    }
    wait_until_done(&*backend, "q", 240).await;
}

/// Jobs without a message are lost with the log: a delay of less than a second, running, dead. So
/// are totals and cancellations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_with_messages_are_restored_after_the_log_is_deleted() {
    let mut config = config("log");
    // A call gets no reply if its entry is deleted.
    config.response_timeout = Duration::from_secs(10);
    let backend = open(&config).await;
    let other = open(&config).await;
    // So that the new log's offsets are smaller.
    for _ in 0..50 {
        backend.schedule(vec![in_an_hour(job("other"))]).await.unwrap();
    }
    let mut runner = start_runner(&backend, "q").await;
    let mut due_soon = schedule_jobs(&backend, 12_000).await;
    let far = in_an_hour(job("q"));
    backend.schedule(vec![far.clone()]).await.unwrap();
    backend.schedule(vec![job("unserved")]).await.unwrap();

    for round in 0..2 {
        delete_queues(&config, &["dq.v1.log.0"]).await;
        // Neither process makes a change. In the first round the 50 jobs of `other` disappear, in
        // the second the count of `new` shows it.
        for process in [&backend, &other] {
            wait_until("the process has noticed", async || {
                let is_new_log = |all: Vec<QueueStats>| all.iter().all(|it| it.scheduled <= 31);
                process.stats(&[]).await.is_ok_and(is_new_log)
            })
            .await;
        }
        assert_eq!(stats(&*other, "unserved").await.ready, 0);
        let new = in_an_hour(job("new"));
        let result = retry(|| backend.schedule(vec![new.clone()])).await;
        assert!(matches!(result[..], [Scheduled::Created(_)]));
        assert_eq!(stats(&*other, "new").await.scheduled, 1, "in round {round}");
        due_soon.extend(schedule_jobs(&backend, 12_000).await);
    }
    runner.expect_each_once(&due_soon).await;
    let again = in_an_hour(far.clone());
    assert_eq!(retry(|| backend.schedule(vec![again.clone()])).await[0].id(), far.id);

    // It has ended in this log. Thirty years exceed the ladder, so the message waits in the highest
    // queue.
    let late_job = after(30 * 360 * 86_400_000, job("late"));
    retry(|| backend.schedule(vec![late_job.clone()])).await;
    let (_connection, channel) = amqp_client(config.url.expose()).await;
    let late = take_message(&channel, &["dq.v1.l5.9"]).await;
    assert_eq!(backend.cancel(&[by_id(&late_job)]).await.unwrap(), [Cancelled::Cancelled]);
    let _wakeups = other.listen(&[queue("late")], "test").await.unwrap();
    let key = late.routing_key.as_str();
    publish(&channel, "dq.v1.due", key, &late.data, late.properties.clone()).await;
    pass_marker(&channel, key).await;
    assert_eq!(stats(&*other, "late").await.scheduled, 0);
}
