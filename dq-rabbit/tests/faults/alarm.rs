//! A broker with a memory alarm.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_core::{
    Backend, DelayHandler, Dq, ErrorKind, HandlerResult, JobContext, NewJob, Outcome, QueueCode,
    Scheduled,
};
use dq_servers::RabbitMq;
use tokio::sync::watch;

use crate::fixture::{
    after, assert_error, blocking, config_for, connect, in_an_hour, job, queue, retry,
    start_runner, stats, wait_until,
};

async fn set_watermark(server: &Arc<RabbitMq>, share: &'static str) {
    let server = Arc::clone(server);
    blocking(move || server.ctl(&["set_vm_memory_high_watermark", share])).await;
}

/// The broker tells only connections that publish, and may accept the first message.
async fn wait_for_alarm(backend: &dyn Backend, in_doubt: &NewJob) {
    wait_until("the alarm is reported", async || {
        let result = backend.schedule(vec![in_doubt.clone()]).await;
        result.is_err_and(|error| error.kind() == ErrorKind::Full)
    })
    .await;
}

/// One after the other, because the alarm concerns the whole server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_alarms() {
    let server = Arc::new(RabbitMq::start());
    calls_fail_during_an_alarm_and_work_after_it(&server).await;
    a_job_that_outlives_its_lease_is_told_to_stop_and_repeated_by_one_process(&server).await;
}

async fn calls_fail_during_an_alarm_and_work_after_it(server: &Arc<RabbitMq>) {
    let mut config = config_for(server);
    config.response_timeout = Duration::from_secs(2);
    let backend = retry(|| connect(&config)).await;
    let mut runner = start_runner(&backend, "q").await;
    let other = retry(|| connect(&config)).await;
    let before: Vec<_> = (0..20).map(|n| after(2_000 + 100 * n, job("q"))).collect();
    retry(|| backend.schedule(before.clone())).await;

    set_watermark(server, "0.0000001").await;
    let in_doubt = in_an_hour(job("full"));
    wait_for_alarm(&*backend, &in_doubt).await;
    let refused_job = in_an_hour(job("full"));
    let words = ["accepts no messages", "vm_memory_high_watermark"];
    let result = tokio::time::timeout(
        Duration::from_secs(30),
        backend.schedule(vec![refused_job.clone(), in_an_hour(job("full"))]),
    );
    let error = assert_error(result.await.expect("in time"), ErrorKind::Full, &words);
    assert!(error.is_retryable());
    assert_error(backend.stats(&[queue("q")]).await, ErrorKind::Full, &words);

    // The broker accepts nothing from this process, so closing may fail, but it ends.
    wait_for_alarm(&*other, &in_doubt).await;
    let closed = tokio::time::timeout(Duration::from_secs(180), other.close()).await;
    drop(closed.expect("it closes during the alarm"));

    set_watermark(server, "0.9").await;
    let again = retry(|| backend.schedule(vec![refused_job.clone()])).await;
    assert!(matches!(again[..], [Scheduled::Created(_)]), "it was not stored: {again:?}");
    let again = retry(|| backend.schedule(vec![in_doubt.clone()])).await;
    assert_eq!(again[0].id(), in_doubt.id);
    assert_eq!(stats(&*backend, "full").await.scheduled, 2);
    runner.expect_each_once(&before).await;
}

const LEASE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct Runs {
    starts: AtomicUsize,
    running: AtomicUsize,
    most: AtomicUsize,
}

/// Works until it is released or has lost its lease.
struct Long {
    runs: Arc<Runs>,
    released: watch::Receiver<bool>,
}

impl DelayHandler for Long {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        "long"
    }

    fn settings(&self) -> QueueSettings {
        QueueSettings::new().lease(LEASE)
    }

    async fn handle(&self, ctx: JobContext, _payload: String) -> HandlerResult {
        let Runs { starts, running, most } = &*self.runs;
        starts.fetch_add(1, Ordering::SeqCst);
        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let mut released = self.released.clone();
        let result = tokio::select! {
            _ = released.wait_for(|released| *released) => Ok(Outcome::Done),
            () = ctx.cancelled() => Err("it was told to stop".into()),
        };
        running.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

async fn a_job_that_outlives_its_lease_is_told_to_stop_and_repeated_by_one_process(
    server: &Arc<RabbitMq>,
) {
    let mut config = config_for(server);
    config.prefix = "long".to_owned();
    config.response_timeout = Duration::from_secs(2);
    let runs = Arc::new(Runs::default());
    let (release, released) = watch::channel(false);
    let mut runners = Vec::new();
    for _process in 0..2 {
        let backend = retry(|| connect(&config)).await;
        let dq = Dq::builder().backend(Arc::clone(&backend)).connect().await.unwrap();
        let handler = Long { runs: Arc::clone(&runs), released: released.clone() };
        let runner = dq.runner().without_linked_handlers().handler(handler).build().unwrap();
        runners.push((backend, tokio::spawn(runner.run_until(std::future::pending::<()>()))));
    }
    let backend = Arc::clone(&runners[0].0);
    let new = job("long");
    retry(|| backend.schedule(vec![new.clone()])).await;
    let starts = || runs.starts.load(Ordering::SeqCst);
    let running = || runs.running.load(Ordering::SeqCst);
    wait_until("the job starts", async || running() == 1).await;

    set_watermark(server, "0.0000001").await;
    let in_doubt = in_an_hour(job("full"));
    for (process, _) in &runners {
        wait_for_alarm(&**process, &in_doubt).await;
    }
    wait_until("the run ends", async || running() == 0).await;
    let before = starts();
    // Nobody can claim it before the alarm ends.
    tokio::time::sleep(2 * LEASE).await;
    assert_eq!((starts(), running()), (before, 0));

    set_watermark(server, "0.9").await;
    wait_until("the job starts again", async || running() == 1).await;
    // Longer than its lease, which is renewed again.
    tokio::time::sleep(2 * LEASE).await;
    release.send_replace(true);
    wait_until("the job is done", async || stats(&*backend, "long").await.stored() == 0).await;
    assert!(starts() > before);
    assert_eq!(runs.most.load(Ordering::SeqCst), 1);
    for (_, running) in runners {
        running.abort();
    }
}
