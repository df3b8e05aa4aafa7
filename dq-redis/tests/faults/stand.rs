//! What the tests stand on: a handle, jobs, and what an error must say.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dq_core::config::{Environment, backend_from_url};
use dq_core::{
    Backend, ClaimParams, Claimed, Clock, DelayHandler, Dq, Due, Entropy, Error, ErrorKind,
    Finding, HandlerResult, Headers, JobContext, JobId, JobKey, JobRef, NewJob, OnConflict,
    Outcome, QueueCode, QueueName, QueueStats, Result, Settlement, SystemClock, Verdict, Want,
};
use dq_redis as _;
use tokio::sync::{mpsc, oneshot};

/// The password of every server here that has one: no error may hold it.
pub(crate) const PASSWORD: &str = "hunter2hunter2";

/// How long anything may take that happens by itself.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A handle on the native backend.
pub(crate) async fn connect(url: &str) -> Result<Arc<dyn Backend>> {
    backend_from_url(url)?.connect(&Environment::default()).await
}

/// A handle on a server that is well.
pub(crate) async fn open(url: &str) -> Arc<dyn Backend> {
    connect(url).await.expect("the server is well")
}

pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a name")
}

/// A job that is due at once.
pub(crate) fn job(name: &str) -> NewJob {
    let id = Entropy::from_os().job_id(SystemClock.now());
    NewJob {
        id,
        queue: queue(name),
        key: None,
        on_conflict: OnConflict::Keep,
        due: Due::NOW,
        payload: format!("\"{id}\"").into(),
        headers: Headers::new(),
        max_attempts: None,
    }
}

pub(crate) fn keyed(name: &str, key: &str) -> NewJob {
    NewJob { key: Some(JobKey::new(key).expect("a key")), ..job(name) }
}

pub(crate) fn later(job: NewJob) -> NewJob {
    NewJob { due: Due::After(Duration::from_secs(3_600)), ..job }
}

pub(crate) fn by_id(job: &NewJob) -> JobRef {
    JobRef::new(job.queue.clone(), job.id)
}

/// Leases of ten seconds.
pub(crate) async fn claim(backend: &dyn Backend, names: &[&str], limit: usize) -> Result<Claimed> {
    claim_for(backend, names, limit, Duration::from_secs(10)).await
}

pub(crate) async fn claim_for(
    backend: &dyn Backend,
    names: &[&str],
    limit: usize,
    lease_for: Duration,
) -> Result<Claimed> {
    let want = |name: &&str| Want { queue: queue(name), max: limit, lease_for };
    let wants: Vec<Want> = names.iter().map(want).collect();
    backend.claim(ClaimParams { wants: &wants, limit, worker: "faults" }).await
}

/// Done with each of these.
pub(crate) fn done(claimed: &Claimed) -> Vec<Settlement> {
    let done =
        |leased: &dq_core::LeasedJob| Settlement { lease: leased.lease(), verdict: Verdict::Done };
    claimed.jobs.iter().map(done).collect()
}

pub(crate) async fn stats(backend: &dyn Backend, name: &str) -> QueueStats {
    let queues = [queue(name)];
    persist(|| backend.stats(&queues)).await.remove(0)
}

/// Says that a call was refused as it should be: with this kind, these words in the message, a
/// remedy, and no password.
#[track_caller]
pub(crate) fn refused<T>(answer: Result<T>, kind: ErrorKind, words: &[&str]) -> Error {
    let Err(error) = answer else { panic!("expected {kind}, and it went well") };
    let text = format!("{error} {error:?}");
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
    assert!(error.remedy_text().is_some(), "{text}");
    assert!(!error.failed_operation().is_empty(), "{text}");
    assert!(!text.contains(PASSWORD), "{text}");
    error
}

/// The finding with this code.
#[track_caller]
pub(crate) fn found<'a>(findings: &'a [Finding], code: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.code == code);
    let found = found.unwrap_or_else(|| panic!("{code} is not among {findings:?}"));
    assert!(!found.remedy.is_empty() && !found.to_string().contains(PASSWORD));
    found
}

/// Asks until the answer is yes.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    let deadline = Instant::now() + PATIENCE;
    while !ask().await {
        assert!(Instant::now() < deadline, "{what}: still not after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Calls until it is answered: what an application does with an error that may go away.
pub(crate) async fn persist<T, F: Future<Output = Result<T>>>(mut call: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => {
                assert!(error.is_retryable(), "not to be repeated: {error}");
                assert!(Instant::now() < deadline, "still not: {error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// A runner that is at work until this is dropped.
#[derive(Debug)]
pub(crate) struct Serving {
    /// Ids of jobs, as they run.
    pub(crate) ran: mpsc::UnboundedReceiver<JobId>,
    _stop: oneshot::Sender<()>,
}

struct Runs {
    code: String,
    ran: mpsc::UnboundedSender<JobId>,
}

impl DelayHandler for Runs {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        self.code.clone()
    }

    async fn handle(&self, ctx: JobContext, _payload: String) -> HandlerResult {
        self.ran.send(ctx.id()).ok();
        Ok(Outcome::Done)
    }
}

/// Serves these queues in a task of its own.
pub(crate) async fn serve(backend: &Arc<dyn Backend>, names: &[String]) -> Serving {
    let dq = Dq::builder().backend(Arc::clone(backend)).connect().await.expect("a client");
    let (sender, ran) = mpsc::unbounded_channel();
    let mut runner = dq.runner().without_linked_handlers();
    for name in names {
        runner = runner.handler(Runs { code: name.clone(), ran: sender.clone() });
    }
    let (stop, stopped) = oneshot::channel();
    let runner = runner.build().expect("a runner");
    tokio::spawn(runner.run_until(async {
        stopped.await.ok();
    }));
    Serving { ran, _stop: stop }
}
