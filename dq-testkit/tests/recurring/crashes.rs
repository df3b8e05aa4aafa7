//! A process that crashes at each store call, and a move to another store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dq_core::{
    Backend, ClaimParams, Claimed, DurationExt, Error, ErrorKind, JobRef, JobView, Layer, NewJob,
    Overlap, Result, Scheduled, Settled, Settlement, async_trait,
};
use dq_testkit::faults::{Crash, CrashPoint};
use dq_testkit::fixture::memory;

use crate::fixture::{START, World, hourly};

const MAX_STEPS: usize = 200;

/// The process crashes at one call: from then on, claim, schedule, settle and get fail. Other calls
/// are not steps; add any call that schedule jobs come to use.
#[derive(Debug)]
struct Stepped {
    store: Arc<dyn Backend>,
    point: CrashPoint,
    has_crashed: Arc<AtomicBool>,
}

impl Stepped {
    async fn step<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        if self.has_crashed.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the process has crashed"));
        }
        let result = self.point.step(call).await;
        self.has_crashed.fetch_or(result.is_err(), Ordering::SeqCst);
        result
    }
}

#[async_trait]
impl Layer for Stepped {
    fn inner(&self) -> &dyn Backend {
        &*self.store
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.step(self.store.claim(params)).await
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.step(self.store.schedule(jobs)).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.step(self.store.settle(settlements)).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.step(self.store.get(job)).await
    }
}

/// The process declares the schedule, handles it and runs jobs. A second process continues. Each
/// handler runs once per occurrence, unless the crash comes between the run and its settlement.
#[tokio::test]
async fn a_crash_between_two_steps_neither_loses_nor_repeats_an_occurrence() {
    for crash in [Crash::Before, Crash::After] {
        for overlap in [Overlap::Allow, Overlap::Skip, Overlap::QueueOne] {
            let mut steps = 0;
            for step in 1..=MAX_STEPS {
                let world = World::new();
                let point = CrashPoint::default();
                let has_crashed = Arc::new(AtomicBool::new(false));
                let store = Stepped {
                    store: world.store.clone(),
                    point: point.clone(),
                    has_crashed: Arc::clone(&has_crashed),
                };
                let schedule = hourly().overlap(overlap).catch_up("all:10".parse().unwrap());
                let first =
                    world.start_over(Arc::new(store), Some(schedule.clone())).await.unwrap();
                point.set(Some((step, crash)));
                let ended = first.try_run_until(3.hours()).await;
                assert_eq!(ended.is_err(), has_crashed.load(Ordering::SeqCst), "{ended:?}");
                if ended.is_ok() {
                    steps = step;
                    break;
                }
                drop(first);
                let context = format!("{crash:?} {step}, {overlap:?}");
                let second = world.start(Some(schedule)).await;
                // Meanwhile the first process's leases expire.
                second.run_until(5.hours() + 30.minutes()).await;
                let mut runs = world.take_runs();
                let twice = runs.len().saturating_sub(5);
                assert!(twice <= 1, "{context}: {runs:?}");
                runs.sort_unstable();
                runs.dedup();
                assert_eq!(runs, [1, 2, 3, 4, 5].map(|hour: u64| hour.hours()), "{context}");
                // A job stored twice in a row counts twice.
                let stats = second.dq.queue("REPORT").unwrap().stats().await.unwrap();
                let created = stats.totals.unwrap().created;
                assert_eq!(created, 5, "{context}: each occurrence is one job");
            }
            assert!(steps > 20, "the test covers {steps} steps");
        }
    }
}

#[tokio::test]
async fn schedules_move_out_of_a_store_that_is_drained() {
    let world = World::new();
    let before = world.start(None).await;
    assert!(before.schedule().every(1.hours()).upsert().await.unwrap());
    before.run_until(2.hours()).await;
    drop(before);
    assert_eq!(world.take_runs(), [1.hours(), 2.hours()]);

    let main = Arc::new(memory(world.clock.clone()));
    let drained = open(world.store.clone());
    let dq = dq_core::Dq::builder().backend(main.clone()).drain(drained);
    let dq = dq.clock(world.clock.clone()).connect().await.unwrap();
    let report = crate::fixture::Report { runs: Arc::clone(&world.runs), schedule: None };
    let runner = dq.runner().without_linked_handlers().handler(report).build().unwrap();
    for hour in 3_u64..=5 {
        world.clock.set(START + hour.hours());
        // The main store first, then the drained one, whose schedule job moves to the main one.
        runner.run_due().await.unwrap();
        runner.run_due().await.unwrap();
    }
    assert_eq!(world.take_runs(), [3, 4, 5].map(|hour: u64| hour.hours()));
    let tickers = [dq_core::QueueName::new("dq.tickers").unwrap()];
    assert_eq!(world.store.stats(&tickers).await.unwrap()[0].stored(), 0);
    assert_eq!(Backend::stats(&*main, &tickers).await.unwrap()[0].stored(), 1);
}

/// A drained store that is already open.
#[derive(Debug, serde::Deserialize)]
struct OpenStore {
    #[serde(skip)]
    store: Option<Arc<dyn Backend>>,
}

fn open(store: Arc<dyn Backend>) -> Box<dyn dq_core::config::BackendConfig> {
    Box::new(OpenStore { store: Some(store) })
}

#[async_trait]
impl dq_core::config::BackendConfig for OpenStore {
    async fn connect(&self, _: &dq_core::config::Environment) -> Result<Arc<dyn Backend>> {
        Ok(self.store.clone().expect("the store is open"))
    }
}
