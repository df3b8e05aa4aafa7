//! The test kit for applications.

use std::sync::atomic::{AtomicU32, Ordering};

use dq_core::config::{BackoffSettings, QueueSettings, ScheduleSettings};
use dq_core::{
    DelayHandler, Dq, DurationExt, HandlerResult, JobContext, Outcome, QueueCode, Result,
};
use dq_testkit::TestKit;
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    id: u64,
}

dq_core::queue!(TIMEOUT: Order);
dq_core::queue!(REMINDER: Order);

/// Schedules a reminder in ten minutes.
struct Timeout;

impl DelayHandler for Timeout {
    type Payload = Order;

    fn code(&self) -> impl QueueCode {
        "TIMEOUT"
    }

    async fn handle(&self, job: JobContext, order: Order) -> HandlerResult {
        let dq = job.state::<Dq>().ok_or("State<Dq> is missing")?;
        let key = format!("reminder-{}", order.id);
        let reminder = dq.schedule::<REMINDER>(order).after(10.minutes()).key(key);
        assert!(reminder.await?.is_stored());
        Ok(Outcome::Done)
    }
}

/// Fails on its first run and skips all later ones.
#[derive(Default)]
struct Reminder(AtomicU32);

impl DelayHandler for Reminder {
    type Payload = Order;

    fn code(&self) -> impl QueueCode {
        "REMINDER"
    }

    fn settings(&self) -> QueueSettings {
        QueueSettings::new().backoff(BackoffSettings::new().initial(1.minutes()).jitter(0.0))
    }

    async fn handle(&self, _job: JobContext, _order: Order) -> HandlerResult {
        match self.0.fetch_add(1, Ordering::SeqCst) {
            0 => Err("not yet".into()),
            _ => Ok(Outcome::skip("read already")),
        }
    }
}

async fn kit() -> Result<TestKit> {
    TestKit::with(|runner| runner.handler(Timeout).handler(Reminder::default())).await
}

#[tokio::test]
async fn advance_runs_every_due_job_at_its_due_time_in_order() -> Result<()> {
    let kit = kit().await?;
    let start = kit.now();
    for (id, minutes) in [(1, 25), (2, 20)] {
        let order = kit.dq().schedule::<TIMEOUT>(Order { id });
        assert!(order.after(minutes.minutes()).await?.is_stored());
    }
    let ran = kit.advance(1.hours()).await;
    let seen: Vec<_> = ran
        .iter()
        .map(|ran| {
            let minute = ran.at.since(start).as_secs() / 60;
            (ran.queue.as_str(), minute, ran.attempt, ran.outcome())
        })
        .collect();
    // The first reminder fails and is retried after a minute.
    assert_eq!(
        seen,
        [
            ("TIMEOUT", 20, 1, "done"),
            ("TIMEOUT", 25, 1, "done"),
            ("REMINDER", 30, 1, "retry"),
            ("REMINDER", 31, 2, "skipped"),
            ("REMINDER", 35, 1, "skipped"),
        ]
    );
    assert_eq!(kit.now(), start + 1.hours());
    Ok(())
}

#[tokio::test]
#[should_panic(expected = "no job with key \"o-9\" is scheduled in TIMEOUT; scheduled: none")]
async fn assert_scheduled_lists_the_jobs_of_the_queue() {
    let kit = kit().await.unwrap();
    kit.assert_scheduled::<TIMEOUT>("o-9", 1.minutes()).await;
}

struct Stateful;

impl DelayHandler for Stateful {
    type Payload = Order;

    fn code(&self) -> impl QueueCode {
        "TIMEOUT"
    }

    fn requires(&self, requirements: &mut dq_core::Requirements) {
        requirements.state::<u64>();
    }

    async fn handle(&self, _job: JobContext, _order: Order) -> HandlerResult {
        Ok(Outcome::Done)
    }
}

#[tokio::test]
async fn the_error_of_a_missing_state_says_how_to_give_it_to_the_kit() -> Result<()> {
    let kit = TestKit::with(|runner| runner.handler(Stateful)).await?;
    assert!(kit.dq().schedule::<TIMEOUT>(Order { id: 1 }).after(1.minutes()).await?.is_stored());
    let error = kit.try_advance(2.minutes()).await.unwrap_err().to_string();
    for needle in ["State<u64>", "`TestKit::with(|runner| runner.state(value))`"] {
        assert!(error.contains(needle), "{needle}: {error}");
    }
    Ok(())
}

struct Hourly;

impl DelayHandler for Hourly {
    type Payload = ();

    fn code(&self) -> impl QueueCode {
        "HOURLY"
    }

    fn schedule(&self) -> Option<ScheduleSettings> {
        Some(ScheduleSettings::new().every(1.hours()))
    }

    async fn handle(&self, job: JobContext, (): ()) -> HandlerResult {
        assert_eq!(job.occurrence(), Some(job.due()));
        Ok(Outcome::Done)
    }
}

#[tokio::test]
async fn schedules_run_only_if_they_are_asked_for() -> Result<()> {
    let kit = TestKit::with(|runner| runner.handler(Hourly)).await?;
    assert!(kit.advance(1.days()).await.is_empty());
    let kit = TestKit::with_schedules(|runner| runner.handler(Hourly)).await?;
    let runs = kit.advance(1.days()).await;
    assert_eq!(runs.len(), 24, "without the runs of the schedule_job");
    assert!(runs.iter().all(|run| run.queue.as_str() == "HOURLY" && run.outcome() == "done"));
    Ok(())
}
