//! Escalations and late policies, interrupted at every call.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::config::{LateAction, LatePolicy, QueueSettings};
use dq_core::sync::lock;
use dq_core::{
    Backend, Cancelled, ClaimParams, Claimed, DelayHandler, Dq, Due, HandlerResult, JobContext,
    JobId, JobRef, JobState, Layer, NewJob, Outcome, QueueCode, QueueName, Rescheduled, Result,
    RunDueReport, Scheduled, Settled, Settlement, async_trait,
};
use futures_util::FutureExt;

use super::client::Counts;
use super::failure::{TrialResult, ensure, ensure_eq, ensure_matches};
use super::store::{LATER, SOON, TrialStore, key};
use super::trial::topic;
use crate::faults::{Crash, CrashPoint};

topic! { "policies":
    escalation_is_one_job [Again, Keys, Reschedule],
    step_that_fails_starts_with_all_attempts [Again],
    dead_step_is_replayed_at_its_step [Again, Browse, DeadLetters],
    cancel_between_any_two_steps_is_binding [Again, Keys, Cancel, Reschedule],
    escalation_that_is_killed_does_not_fork [Again],
    late_job_that_is_killed_is_moved_once [Browse, History],
}

const STEPS: u32 = 3;

/// Step and attempt of each run.
type Runs = Arc<Mutex<Vec<(u32, u32)>>>;

struct Reminder {
    queue: QueueName,
    runs: Runs,
    delay: Duration,
    result: fn(&JobContext) -> HandlerResult,
    lease: Duration,
}

fn all_steps(ctx: &JobContext) -> HandlerResult {
    Ok(if ctx.is_last_step() { Outcome::Done } else { Outcome::next_step() })
}

impl Reminder {
    fn new(
        queue: &QueueName,
        runs: &Runs,
        delay: Duration,
        result: fn(&JobContext) -> HandlerResult,
    ) -> Self {
        // Long enough for a busy machine.
        let lease = Duration::from_secs(600);
        Self { queue: queue.clone(), runs: Arc::clone(runs), delay, result, lease }
    }
}

impl DelayHandler for Reminder {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        self.queue.to_string()
    }

    fn settings(&self) -> QueueSettings {
        QueueSettings::new().lease(self.lease).max_attempts(2)
    }

    fn escalate(&self) -> Vec<Duration> {
        vec![self.delay; STEPS as usize]
    }

    async fn handle(&self, ctx: JobContext, payload: String) -> HandlerResult {
        assert_eq!(payload, "the payload", "each step has the payload");
        lock(&self.runs).push((ctx.step(), ctx.attempt()));
        (self.result)(&ctx)
    }
}

/// Fails once, at a call that the trial chooses.
#[derive(Debug)]
struct Killed {
    inner: Arc<dyn Backend>,
    point: CrashPoint,
}

#[async_trait]
impl Layer for Killed {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.point.step(self.inner.schedule(jobs)).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        // Changes nothing.
        if params.limit == 0 {
            return self.inner.claim(params).await;
        }
        self.point.step(self.inner.claim(params)).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.point.step(self.inner.settle(settlements)).await
    }
}

/// As in a process that has just started.
async fn client(store: &TrialStore, backend: Arc<dyn Backend>) -> TrialResult<Dq> {
    let clock = store.clock().of_process();
    Ok(Dq::builder().backend(backend).clock(clock).connect().await?)
}

/// In a new process.
async fn run_due(dq: &Dq, handler: impl DelayHandler) -> Result<RunDueReport> {
    dq.runner().without_linked_handlers().handler(handler).build()?.run_due().await
}

/// Runs until no job waits, each time in a new process. A failed call ends the process. The queue
/// must never have more than one live job.
async fn run_all<H: DelayHandler>(
    store: &TrialStore,
    backend: Arc<dyn Backend>,
    queue: &QueueName,
    handler: impl Fn() -> H,
) -> TrialResult {
    loop {
        let report = run_due(&client(store, backend.clone()).await?, handler()).await;
        let live = store.stats(queue).await?.live();
        ensure!(live <= 1, "one job never becomes {live}");
        match report {
            Ok(_) if live == 0 => return Ok(()),
            Ok(RunDueReport { next_due: Some(due), .. }) => store.wait_until(due).await?,
            // A store without its own clock may not know yet when a lease expires.
            Ok(RunDueReport { next_due: None, .. }) => store.wait_for(SOON).await?,
            Err(error) => {
                ensure!(error.is_retryable(), "the test has made the call fail, not: {error}");
            }
        }
    }
}

fn reminder(store: &TrialStore, queue: &QueueName) -> NewJob {
    store.job(queue, Duration::ZERO).payload("\"the payload\"")
}

async fn escalation_is_one_job(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let new = reminder(&store, &queue).key(key("k"));
    let id = store.create(new.clone()).await?.id;
    let runs = Runs::default();
    let handler = || Reminder::new(&queue, &runs, LATER, all_steps);
    let dq = client(&store, store.backend().clone()).await?;
    for step in 0..STEPS {
        if store.capabilities().browse {
            let view = dq.queue(&queue)?.get(key("k")).await?;
            let view = view.map(|view| (view.job.id, view.job.step(), view.job.payload));
            let wanted = (id, step, new.payload.clone());
            ensure_eq!(view, Some(wanted), "the job shows its step and its payload");
        }
        start_step(&store, &queue).await?;
        ensure_eq!(run_due(&dq, handler()).await?.jobs, 1, "step {step} runs");
    }
    ensure_eq!(*lock(&runs), [(0, 1), (1, 1), (2, 1)], "all steps run, in order");
    store.expect_counts(&queue, Counts::NONE, "after the last step").await
}

/// Makes the next step due, because on a busy machine a short delay may pass during a call.
async fn start_step(store: &TrialStore, queue: &QueueName) -> TrialResult {
    let moved = store.reschedule(queue, key("k"), Due::NOW).await?;
    ensure_matches!(moved, Rescheduled::Moved(_), "the job waits for its next step");
    Ok(())
}

async fn step_that_fails_starts_with_all_attempts(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    store.create(reminder(&store, &queue)).await?;
    let runs = Runs::default();
    let fails_first = |ctx: &JobContext| match ctx.attempt() {
        1 => Err("the first attempt of each step fails".into()),
        _ => all_steps(ctx),
    };
    let handler = || Reminder::new(&queue, &runs, SOON, fails_first);
    run_all(&store, store.backend().clone(), &queue, handler).await?;
    let wanted: Vec<_> = (0..STEPS).flat_map(|step| [(step, 1), (step, 2)]).collect();
    ensure_eq!(*lock(&runs), wanted, "attempts start again with each step");
    Ok(())
}

async fn dead_step_is_replayed_at_its_step(store: TrialStore) -> TrialResult {
    let queue = store.queue();
    let id = store.create(reminder(&store, &queue)).await?.id;
    let runs = Runs::default();
    let handler = || Reminder::new(&queue, &runs, SOON, |_| Ok(Outcome::next_step()));
    run_all(&store, store.backend().clone(), &queue, handler).await?;
    let job = JobRef::new(queue.clone(), id);
    let view = store.checked().backend().get(&job).await?;
    let view = view.map(|view| (view.state, view.job.step(), view.job.payload.clone()));
    let wanted = (JobState::Dead, STEPS - 1, "\"the payload\"".into());
    ensure_eq!(view, Some(wanted), "no step follows the last one");
    ensure_eq!(store.replay_all(&queue).await?, 1, "a dead step can be replayed");
    run_all(&store, store.backend().clone(), &queue, handler).await?;
    ensure_eq!(*lock(&runs), [(0, 1), (1, 1), (2, 1), (2, 1)], "the replay runs the last step");
    Ok(())
}

async fn cancel_between_any_two_steps_is_binding(store: TrialStore) -> TrialResult {
    for steps in 0..STEPS {
        let queue = store.queue();
        store.create(reminder(&store, &queue).key(key("k")).due(LATER)).await?;
        let runs = Runs::default();
        let handler = || Reminder::new(&queue, &runs, LATER, all_steps);
        let dq = client(&store, store.backend().clone()).await?;
        for _ in 0..steps {
            start_step(&store, &queue).await?;
            ensure_eq!(run_due(&dq, handler()).await?.jobs, 1, "a step runs");
        }
        let cancelled = store.cancel(&queue, key("k")).await?;
        ensure_eq!(cancelled, Cancelled::Cancelled, "after {steps} steps, by the key");
        let moved = store.reschedule(&queue, key("k"), Due::NOW).await?;
        ensure_eq!(moved, Rescheduled::NotFound, "no step waits after the cancel");
        let report = run_due(&dq, handler()).await?;
        ensure_eq!(report, RunDueReport { jobs: 0, next_due: None }, "after {steps} steps");
        ensure_eq!(lock(&runs).len(), steps as usize, "no step after the cancel");
    }
    Ok(())
}

async fn escalation_that_is_killed_does_not_fork(store: TrialStore) -> TrialResult {
    // Each step has a claim and a settlement. In between, a claim finds nothing due.
    let calls = 3 * STEPS as usize - 1;
    let scenarios = (1..=calls).flat_map(|call| [(call, Crash::Before), (call, Crash::After)]);
    let all: Vec<_> = scenarios.map(|crash| escalation_killed_at(&store, crash).boxed()).collect();
    futures_util::future::join_all(all).await.into_iter().collect()
}

async fn escalation_killed_at(store: &TrialStore, crash: (usize, Crash)) -> TrialResult {
    let queue = store.queue();
    store.create(reminder(store, &queue)).await?;
    let point = CrashPoint::default();
    point.set(Some(crash));
    let backend = Arc::new(Killed { inner: store.backend().clone(), point });
    let runs = Runs::default();
    let handler = || {
        let lease = Duration::from_secs(1);
        Reminder { lease, ..Reminder::new(&queue, &runs, SOON, all_steps) }
    };
    run_all(store, backend, &queue, handler).await?;
    let mut steps: Vec<_> = lock(&runs).iter().map(|(step, _)| *step).collect();
    ensure!(steps.is_sorted(), "no step runs after a later one: {steps:?} with {crash:?}");
    steps.dedup();
    ensure_eq!(steps, [0, 1, 2], "each step runs, with {crash:?}");
    if let Some(totals) = store.stats(&queue).await?.totals {
        ensure_eq!((totals.created, totals.done), (1, 1), "it is one job, with {crash:?}");
    }
    Ok(())
}

/// Moves late jobs to another queue.
struct Punctual {
    queue: QueueName,
    target: QueueName,
}

impl DelayHandler for Punctual {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        self.queue.to_string()
    }

    fn settings(&self) -> QueueSettings {
        let then = LateAction::Queue(self.target.clone());
        let late = LatePolicy::new(Duration::from_secs(600), then);
        QueueSettings::new().lease(Duration::from_secs(1)).late(late)
    }

    async fn handle(&self, _: JobContext, _: String) -> HandlerResult {
        panic!("a late job of this queue does not run")
    }
}

async fn late_job_that_is_killed_is_moved_once(store: TrialStore) -> TrialResult {
    // A claim, a schedule call, a settlement. All scenarios run at once: a runner waits before it
    // repeats a schedule call, and a virtual clock moves only while another scenario waits for a
    // lease.
    let scenarios = (1..=3).flat_map(|call| [(call, Crash::Before), (call, Crash::After)]);
    let all: Vec<_> = scenarios.map(|crash| late_job_killed_at(&store, crash).boxed()).collect();
    futures_util::future::join_all(all).await.into_iter().collect()
}

async fn late_job_killed_at(store: &TrialStore, crash: (usize, Crash)) -> TrialResult {
    let (queue, target) = (store.queue(), store.queue());
    let due = store.now().await? - LATER;
    let mut new = store.job(&queue, due).payload("\"late\"");
    new.key = store.capabilities().keys.then(|| key("k"));
    let id = store.create(new.clone()).await?.id;
    let point = CrashPoint::default();
    point.set(Some(crash));
    let backend = Arc::new(Killed { inner: store.backend().clone(), point });
    let handler = || Punctual { queue: queue.clone(), target: target.clone() };
    // The runner itself repeats a failed schedule call.
    run_all(store, backend, &queue, handler).await?;
    let what = format!("a late job whose process is killed at {crash:?}");
    store.expect_counts(&queue, Counts::NONE, &what).await?;
    store.expect_counts(&target, Counts::ready(1), &what).await?;
    let moved = store.lease_one(&target).await?.job;
    ensure_eq!((moved.payload, moved.key), (new.payload, new.key), "{what}");
    let ended = store.get_existing(&queue, id).await?.ended;
    let reason = ended.and_then(|ended| ended.reason).unwrap_or_default();
    let moved_id: JobId = moved.id;
    ensure_matches!(
        &reason,
        reason if reason.contains("1h") && reason.contains(&moved_id.to_string()),
        "the history says why the job ended, and where it is: {reason}"
    );
    Ok(())
}
