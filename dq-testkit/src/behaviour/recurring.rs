//! Schedules: client and runner implement them with jobs only.
//!
//! All schedules in a store wait in one reserved queue. On a shared store, any trial's runner may
//! handle another trial's schedule.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{
    Backend, CatchUp, DelayHandler, Dq, HandlerResult, JobContext, Outcome, Overlap, QueueCode,
    QueueName, RecurringSchedule, Runner, Timestamp,
};

use super::failure::{TrialResult, ensure, ensure_eq};
use super::store::TrialStore;
use super::trial::topic;

topic! { "recurring":
    each_occurrence_runs_once [keys, browse, cancel, again, history],
    changes_bind_every_process [keys, browse, cancel, again, history, shared],
    schedule_survives_a_crash [keys, browse, cancel, again, history, durable],
}

/// Short, because on a real clock it takes real time.
const INTERVAL: Duration = Duration::from_millis(250);

/// Starts per occurrence.
type Runs = Arc<Mutex<BTreeMap<Timestamp, u32>>>;

struct Counter {
    queue: QueueName,
    runs: Runs,
}

impl DelayHandler for Counter {
    type Payload = ();

    fn code(&self) -> impl QueueCode {
        self.queue.to_string()
    }

    async fn handle(&self, ctx: JobContext, (): ()) -> HandlerResult {
        let occurrence = ctx.occurrence().ok_or("not the job of a schedule")?;
        *lock(&self.runs).entry(occurrence).or_default() += 1;
        Ok(Outcome::Done)
    }
}

struct Process {
    dq: Dq,
    runner: Runner,
    queue: QueueName,
    runs: Runs,
}

impl Process {
    async fn start(
        store: &TrialStore,
        backend: Arc<dyn Backend>,
        queue: &QueueName,
        runs: &Runs,
    ) -> TrialResult<Self> {
        let clock = store.clock().of_process();
        let dq = Dq::builder().backend(backend).clock(clock).connect().await?;
        let counter = Counter { queue: queue.clone(), runs: Arc::clone(runs) };
        let runner = dq.runner().without_linked_handlers().handler(counter).build()?;
        Ok(Self { dq, runner, queue: queue.clone(), runs: Arc::clone(runs) })
    }

    fn schedule(&self) -> RecurringSchedule<serde_json::Value> {
        self.dq.recurring_in(&self.queue, self.queue.as_str())
    }

    async fn create(&self) -> TrialResult {
        // On a slow machine, a store may need half a minute for a few calls.
        let all = CatchUp::All(1_000.try_into().expect("not zero"));
        let schedule = self.schedule().every(INTERVAL).catch_up(all);
        let is_new = schedule.overlap(Overlap::Allow).upsert().await?;
        ensure!(is_new, "the schedule is new");
        Ok(())
    }

    async fn run_due(&self) -> TrialResult {
        loop {
            match self.runner.run_due().await {
                Ok(_) => return Ok(()),
                // On a very busy machine, the schedule job's lease can expire during a claim.
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn run(&self, store: &TrialStore, occurrences: usize) -> TrialResult {
        while lock(&self.runs).len() < occurrences {
            self.run_due().await?;
            store.wait_for(INTERVAL / 5).await?;
        }
        Ok(())
    }
}

/// From the first occurrence to the last.
fn ensure_each_once(runs: &Runs) -> TrialResult {
    let runs = lock(runs).clone();
    ensure!(runs.values().all(|count| *count == 1), "each occurrence runs once: {runs:?}");
    let times: Vec<i64> = runs.keys().map(|time| time.as_millis()).collect();
    let interval = i64::try_from(INTERVAL.as_millis()).unwrap_or_default();
    ensure!(
        times.iter().all(|time| time % interval == 0)
            && times.windows(2).all(|pair| pair[1] - pair[0] == interval),
        "no occurrence is left out: {times:?}"
    );
    Ok(())
}

async fn process(store: &TrialStore) -> TrialResult<Process> {
    Process::start(store, store.backend().clone(), &store.queue(), &Runs::default()).await
}

async fn each_occurrence_runs_once(store: TrialStore) -> TrialResult {
    let process = process(&store).await?;
    process.create().await?;
    process.run(&store, 4).await?;
    ensure_each_once(&process.runs)?;
    ensure!(process.schedule().pause().await?, "it was not paused");
    expect_no_runs(&store, &process, "a paused schedule").await?;
    ensure!(process.schedule().resume().await?, "it was paused");
    let count = lock(&process.runs).len();
    process.run(&store, count + 1).await?;
    ensure!(process.schedule().remove().await?, "the schedule exists");
    ensure!(process.schedule().get().await?.is_none(), "it was removed");
    expect_no_runs(&store, &process, "a removed schedule").await?;
    let runs = lock(&process.runs).clone();
    ensure!(runs.values().all(|count| *count == 1), "each occurrence runs once: {runs:?}");
    Ok(())
}

async fn expect_no_runs(store: &TrialStore, process: &Process, what: &str) -> TrialResult {
    process.run_due().await?;
    let count = lock(&process.runs).len();
    store.wait_for(2 * INTERVAL).await?;
    process.run_due().await?;
    ensure_eq!(lock(&process.runs).len(), count, "{what} runs nothing");
    Ok(())
}

async fn changes_bind_every_process(store: TrialStore) -> TrialResult {
    let first = process(&store).await?;
    let other = store.second_client().await?.backend().clone();
    let second = Process::start(&store, other, &first.queue, &first.runs).await?;
    first.create().await?;
    let seen = second.schedule().get().await?;
    ensure!(seen.is_some_and(|view| !view.paused), "another process sees the schedule");
    second.run(&store, 2).await?;
    first.run(&store, 4).await?;
    ensure_each_once(&first.runs)?;
    ensure!(second.schedule().pause().await?, "another process pauses it");
    ensure!(!first.schedule().pause().await?, "it is paused for each process");
    ensure!(first.schedule().remove().await?, "the schedule exists");
    ensure!(!second.schedule().resume().await?, "it was removed for each process");
    Ok(())
}

async fn schedule_survives_a_crash(store: TrialStore) -> TrialResult {
    let before = process(&store).await?;
    before.create().await?;
    before.run(&store, 2).await?;
    let Process { queue, runs, dq, runner, .. } = before;
    drop((dq, runner));
    let store = store.crash().await?;
    let after = Process::start(&store, store.backend().clone(), &queue, &runs).await?;
    let count = lock(&runs).len();
    after.run(&store, count + 2).await?;
    ensure!(after.schedule().remove().await?, "the schedule exists");
    ensure_each_once(&runs)
}
