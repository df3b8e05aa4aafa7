//! Escalations and late policies, on one store, in processes that are killed at every call.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::stepped::Stepped;
use dq_core::config::{LateAction, LatePolicy, QueueSettings};
use dq_core::sync::lock;
use dq_core::{
    Backend, Clock, DelayHandler, Dq, DurationExt, HandlerResult, JobContext, JobState, Operation,
    Outcome, QueueCode, QueueHandle, Result, RunDueReport, VirtualClock,
};
use dq_testkit::faults::{Crash, CrashPoint};
use dq_testkit::fixture::{dead_ids, memory, queue, run_due, stats};

const STEPS: u32 = 3;
const PAYLOAD: &str = "\"the payload\"";

/// The step and the attempt of each run.
type Runs = Arc<Mutex<Vec<(u32, u32)>>>;

#[derive(Clone)]
struct Reminder {
    runs: Runs,
    result: fn(&JobContext) -> HandlerResult,
}

fn all_steps(ctx: &JobContext) -> HandlerResult {
    Ok(if ctx.is_last_step() { Outcome::Done } else { Outcome::next_step() })
}

impl DelayHandler for Reminder {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        "Q"
    }

    fn settings(&self) -> QueueSettings {
        QueueSettings::new().max_attempts(2)
    }

    fn escalate(&self) -> Vec<Duration> {
        vec![1.hours(); STEPS as usize]
    }

    async fn handle(&self, ctx: JobContext, payload: String) -> HandlerResult {
        assert_eq!(payload, "the payload", "each step has the payload");
        lock(&self.runs).push((ctx.step(), ctx.attempt()));
        (self.result)(&ctx)
    }
}

#[derive(Clone)]
struct Punctual;

impl DelayHandler for Punctual {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        "Q"
    }

    fn settings(&self) -> QueueSettings {
        let then = LateAction::Queue(queue("LATE"));
        QueueSettings::new().late(LatePolicy::new(10.minutes(), then))
    }

    async fn handle(&self, _: JobContext, _: String) -> HandlerResult {
        panic!("a late job of this queue does not run")
    }
}

/// A store and a clock for several processes, and the runs of their handlers.
struct World {
    clock: Arc<VirtualClock>,
    store: Arc<dyn Backend>,
    runs: Runs,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(VirtualClock::default());
        Self { store: Arc::new(memory(clock.clone())), clock, runs: Runs::default() }
    }

    fn reminder(&self, result: fn(&JobContext) -> HandlerResult) -> Reminder {
        Reminder { runs: Arc::clone(&self.runs), result }
    }

    fn runs(&self) -> Vec<(u32, u32)> {
        lock(&self.runs).clone()
    }

    async fn client(&self, store: &Arc<dyn Backend>) -> Dq {
        let dq = Dq::builder().backend(store.clone()).clock(self.clock.clone());
        dq.connect().await.unwrap()
    }

    async fn queue(&self) -> QueueHandle {
        self.client(&self.store).await.queue("Q").unwrap()
    }

    /// Stores a job with the key `K`, due now.
    async fn schedule(&self) {
        let job = self.queue().await.schedule(PAYLOAD, "application/json");
        assert!(job.key("K").await.unwrap().is_stored());
    }

    /// Runs the due jobs in a new process.
    async fn run_due(
        &self,
        store: &Arc<dyn Backend>,
        handler: impl DelayHandler,
    ) -> Result<RunDueReport> {
        let dq = self.client(store).await;
        dq.runner().without_linked_handlers().handler(handler).build()?.run_due().await
    }

    /// Runs until no job waits, each time in a new process. A failed call ends the process. The
    /// queue must never have more than one live job.
    async fn run_all(&self, store: &Arc<dyn Backend>, handler: impl DelayHandler + Clone) {
        loop {
            let report = self.run_due(store, handler.clone()).await;
            let live = stats(&*self.store, "Q").await.live();
            assert!(live <= 1, "one job never becomes {live}");
            match report {
                Ok(_) if live == 0 => return,
                Ok(report) => {
                    let due = report.next_due.expect("a live job is due some time");
                    self.clock.set(due.max(self.clock.now()));
                }
                Err(error) => assert!(error.is_retryable(), "not by this test: {error}"),
            }
        }
    }

    fn crashing(&self, crash: (usize, Crash)) -> Arc<dyn Backend> {
        let point = CrashPoint::default();
        point.set(Some(crash));
        Stepped::over(self.store.clone(), &point, false)
    }
}

/// A crash before and after each of the first `steps` calls to the store.
fn crashes(steps: usize) -> impl Iterator<Item = (usize, Crash)> {
    (1..=steps).flat_map(|step| [(step, Crash::Before), (step, Crash::After)])
}

#[tokio::test]
async fn a_dead_step_is_replayed_at_its_step() {
    let world = World::new();
    world.schedule().await;
    let handler = world.reminder(|_| Ok(Outcome::next_step()));
    world.run_all(&world.store, handler.clone()).await;
    let jobs = dead_ids(&*world.store, &queue("Q")).await;
    let view = world.queue().await.get(jobs[0]).await.unwrap().unwrap();
    assert_eq!((view.state, view.job.step()), (JobState::Dead, STEPS - 1), "no step follows");
    let (queue, due) = (&queue("Q"), dq_core::Due::NOW);
    let replay = Operation::Replay { queue, jobs: &jobs, due };
    assert_eq!(world.store.operate(replay).await.unwrap().affected, 1);
    world.run_all(&world.store, handler).await;
    assert_eq!(world.runs(), [(0, 1), (1, 1), (2, 1), (2, 1)], "the replay runs the last step");
}

#[tokio::test]
async fn an_escalation_that_is_killed_does_not_fork() {
    // Each step has a claim and a settlement. In between, a claim finds nothing due.
    for crash in crashes(3 * STEPS as usize - 1) {
        let world = World::new();
        world.schedule().await;
        world.run_all(&world.crashing(crash), world.reminder(all_steps)).await;
        let mut steps: Vec<_> = world.runs().iter().map(|(step, _)| *step).collect();
        assert!(steps.is_sorted(), "no step runs after a later one: {steps:?} with {crash:?}");
        steps.dedup();
        assert_eq!(steps, [0, 1, 2], "each step runs, with {crash:?}");
        let totals = stats(&*world.store, "Q").await.totals.unwrap();
        assert_eq!((totals.created, totals.done), (1, 1), "it is one job, with {crash:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_job_that_is_killed_is_moved_once() {
    // A claim, a schedule call, a settlement.
    for crash in crashes(3) {
        let world = World::new();
        world.schedule().await;
        let id = world.queue().await.get("K").await.unwrap().unwrap().job.id;
        world.clock.advance(1.hours());
        let store = world.crashing(crash);
        // The runner itself repeats a failed schedule call, after a while.
        let clock = world.clock.clone();
        let time = tokio::spawn(async move {
            loop {
                tokio::time::sleep(10.millis()).await;
                clock.advance(10.millis());
            }
        });
        world.run_all(&store, Punctual).await;
        time.abort();
        assert_eq!(stats(&*world.store, "Q").await.stored(), 0, "{crash:?}");
        let late = world.client(&world.store).await.queue("LATE").unwrap();
        let moved = late.get("K").await.unwrap().expect("it keeps its key").job.id;
        assert_eq!(run_due(&*world.store, "LATE").await, [PAYLOAD], "{crash:?}");
        let ended = world.queue().await.get(id).await.unwrap().unwrap().ended.unwrap();
        let reason = ended.reason.unwrap_or_default();
        assert!(reason.contains("1h") && reason.contains(&moved.to_string()), "{reason}");
    }
}
