//! Processes that serve die, or lose their connection, between a request and its reply.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use dq_core::config::Secret;
use dq_core::{Backend, Cancelled, ErrorKind, JobState, NewJob, Result, Scheduled};
use dq_rabbit::{RabbitBackend, RabbitConfig};
use dq_servers::shared_rabbitmq;
use dq_testkit::faults::TcpProxy;
use dq_testkit::fixture::{TIMEOUT, blocking, by_id, in_an_hour, job, stats, wait_until};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::fixture::{
    SilentServer, assert_unknown, config, config_for, framed, full, light, servers, spawn_schedule,
    with_silent_server,
};

/// The URL of the broker, for a child process.
const URL: &str = "DQ_RABBIT_TEST_URL";

/// `Executed(Cancelled([Cancelled]))`, the body of a reply of version 1.
const REPLY_CANCELLED: [u8; 4] = [0, 1, 1, 0];

/// Another process that serves. It is killed when this is dropped.
pub(crate) struct ServingProcess(Child);

impl ServingProcess {
    /// Sends a signal.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    pub(crate) async fn start(config: &RabbitConfig) -> Self {
        let url = config.url.expose().to_owned();
        blocking(move || {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "kills::serving_process", "--nocapture"])
                .env(URL, url)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap() == "open"), "the child process has ended");
            Self(child)
        })
        .await
    }
}

impl Drop for ServingProcess {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "other tests start this as a process, and kill it"]
async fn serving_process() {
    let url = std::env::var(URL).expect("this test is started by another test");
    let _server = full(&config_for(&url)).await;
    println!("\nopen");
    // Ends with the process that started this one.
    blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await.unwrap();
}

/// Callers that schedule and cancel jobs, and repeat each call until its result is known.
struct Load {
    stop: CancellationToken,
    callers: Vec<JoinHandle<Calls>>,
    /// Number of jobs that were scheduled so far.
    done: Arc<AtomicUsize>,
    /// Number of calls that were answered with `OutcomeUnknown`.
    unknown: Arc<AtomicUsize>,
}

/// What callers have seen.
#[derive(Default)]
struct Calls {
    scheduled: Vec<NewJob>,
    cancelled: Vec<NewJob>,
    /// As in [`Load`].
    unknown: Arc<AtomicUsize>,
}

impl Calls {
    /// Makes a call until its result is known. Returns the result, and whether it was unknown
    /// before.
    async fn until_known<T, F: Future<Output = Result<T>>>(
        &mut self,
        mut call: impl FnMut() -> F,
    ) -> (T, bool) {
        let mut was_unknown = false;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < deadline, "no result within {TIMEOUT:?}");
            match call().await {
                Ok(result) => return (result, was_unknown),
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                    self.unknown.fetch_add(1, Ordering::Relaxed);
                    was_unknown = true;
                }
                // Certainly without effect.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    }

    async fn schedule_and_cancel(&mut self, backend: &RabbitBackend) {
        let job = in_an_hour(job("q"));
        let schedule = || backend.schedule(vec![job.clone()]);
        let (first, _) = self.until_known(schedule).await;
        assert!(matches!(first[..], [Scheduled::Created(_)]), "{first:?}");
        let (repeated, _) = self.until_known(schedule).await;
        assert_eq!(first, repeated);
        if self.scheduled.len().is_multiple_of(3) {
            let id = [by_id(&job)];
            let (result, was_unknown) = self.until_known(|| backend.cancel(&id)).await;
            // A call with an unknown outcome may have cancelled the job.
            let is_known = result == [Cancelled::Cancelled];
            assert!(is_known || (was_unknown && result == [Cancelled::NotFound]), "{result:?}");
            self.cancelled.push(job.clone());
        }
        self.scheduled.push(job);
    }
}

impl Load {
    fn start(backend: &Arc<RabbitBackend>, callers: usize) -> Self {
        let stop = CancellationToken::new();
        let (done, unknown) = (Arc::default(), Arc::<AtomicUsize>::default());
        let caller = |_| {
            let (backend, stop) = (Arc::clone(backend), stop.clone());
            let (done, unknown) = (Arc::<AtomicUsize>::clone(&done), Arc::clone(&unknown));
            tokio::spawn(async move {
                let mut calls = Calls { unknown, ..Calls::default() };
                while !stop.is_cancelled() {
                    calls.schedule_and_cancel(&backend).await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                calls
            })
        };
        let callers = (0..callers).map(caller).collect();
        Self { stop, callers, done, unknown }
    }

    fn unknown(&self) -> usize {
        self.unknown.load(Ordering::Relaxed)
    }

    /// Waits until this many more jobs are scheduled.
    async fn wait_for(&self, jobs: usize) {
        let done = || self.done.load(Ordering::Relaxed);
        let goal = done() + jobs;
        wait_until("the calls go on", async || done() >= goal).await;
    }

    /// Stops the callers, and compares what they have seen with what a process with a replica sees.
    async fn finish(self, witness: &RabbitBackend) {
        self.stop.cancel();
        let mut all = Calls::default();
        for caller in self.callers {
            let calls = caller.await.unwrap();
            all.scheduled.extend(calls.scheduled);
            all.cancelled.extend(calls.cancelled);
        }
        let (created, cancelled) = (all.scheduled.len() as u64, all.cancelled.len() as u64);
        let stats = stats(witness, "q").await;
        let totals = stats.totals.unwrap();
        assert_eq!((totals.created, totals.cancelled), (created, cancelled), "none is doubled");
        assert_eq!((stats.scheduled, stats.adds_up()), (created - cancelled, Some(true)));
        for job in all.scheduled {
            let view = witness.get(&by_id(&job)).await.unwrap();
            let is_live = view.is_some_and(|view| view.state == JobState::Scheduled);
            let is_cancelled = all.cancelled.iter().any(|cancelled| cancelled.id == job.id);
            assert_eq!(is_live, !is_cancelled, "{}", job.id);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_lose_and_double_nothing() {
    let config = config("light-kills");
    let mut server = ServingProcess::start(&config).await;
    let caller = light(&config).await;
    let load = Load::start(&caller, 8);
    let mut kills = 0;
    // Until one met a request that was being executed.
    while kills < 5 || load.unknown() == 0 {
        assert!(kills < 100, "no request was being executed when its process was killed");
        kills += 1;
        let next = ServingProcess::start(&config).await;
        wait_until("both serve", async || servers(&config).await == 2).await;
        load.wait_for(50).await;
        // With SIGKILL, while it executes the requests of some callers.
        drop(std::mem::replace(&mut server, next));
        wait_until("the other one serves", async || servers(&config).await == 1).await;
    }
    let witness = full(&config).await;
    load.finish(&witness).await;
    assert!(caller.is_light());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_come_and_go_lose_and_double_nothing() {
    let config = config("light-churn");
    let mut server = full(&config).await;
    let caller = light(&config).await;
    let load = Load::start(&caller, 4);
    for is_closed in [true, false, true, false] {
        let next = full(&config).await;
        wait_until("both serve", async || servers(&config).await == 2).await;
        load.wait_for(20).await;
        if is_closed {
            server.close().await.unwrap();
        }
        // Else it is dropped.
        server = next;
    }
    load.finish(&server).await;
    assert!(caller.is_light());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_lose_and_double_nothing() {
    let config = config("light-cuts");
    let stable = full(&config).await;
    let proxy = TcpProxy::to(shared_rabbitmq().address()).await;
    let mut by_proxy = config.clone();
    by_proxy.url = Secret::new(proxy.url(config.url.expose()));
    let _unstable = full(&by_proxy).await;
    wait_until("both serve", async || servers(&config).await == 2).await;
    let caller = light(&config).await;
    let load = Load::start(&caller, 8);
    // Somewhere in an append, a message, a reply or an acknowledgement; or in a delivery.
    for bytes in [1, 150, 400, 1_000, 3_000] {
        for cut in [TcpProxy::cut_request_after, TcpProxy::cut_reply_after] {
            cut(&proxy, bytes);
            load.wait_for(100).await;
            wait_until("it serves again", async || servers(&config).await == 2).await;
        }
    }
    load.finish(&stable).await;
    assert!(caller.is_light());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_may_die_after_each_step_of_a_request() {
    let config = config("light-steps");
    let (caller, mut silent) = with_silent_server(&config).await;
    let job = in_an_hour(job("q"));

    // It has executed the request, and has not replied.
    let call = spawn_schedule(&caller, &job);
    silent.take_new().await;
    let server = full(&config).await;
    let scheduled = server.schedule(vec![job.clone()]).await.unwrap();
    silent.die().await;
    assert_unknown(call.await.unwrap());
    assert_eq!(caller.schedule(vec![job.clone()]).await.unwrap(), scheduled, "as the first time");
    assert_eq!(stats(&*server, "q").await.totals.unwrap().created, 1);

    // It has replied, and has not acknowledged the request.
    let mut silent = SilentServer::start(&config).await;
    let id = [by_id(&job)];
    let calls: Vec<_> = (0..4)
        .map(|_| {
            let (caller, id) = (Arc::clone(&caller), id.clone());
            tokio::spawn(async move { caller.cancel(&id).await })
        })
        .collect();
    // The other requests go to the other process, before or after this.
    let request = silent.take().await;
    let _ = server.cancel(&id).await.unwrap();
    silent.reply(&request, &framed(1, &REPLY_CANCELLED)).await;
    for call in calls {
        assert!(call.await.unwrap().is_ok());
    }
    // The broker delivers the request again, and nobody waits for the second reply.
    silent.die().await;
    assert_eq!(caller.cancel(&id).await.unwrap(), [Cancelled::NotFound]);
    let totals = stats(&*caller, "q").await.totals.unwrap();
    assert_eq!((totals.created, totals.cancelled), (1, 1));
    assert!(caller.is_light());
}
