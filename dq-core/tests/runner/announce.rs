//! Runner announcements, and an idle runner's calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dq_core::{
    Announcement, Backend, Capabilities, ClaimParams, Claimed, Clock, DurationExt, Layer,
    MemoryBackend, Outcome, QueueName, QueueStats, RegisteredRunner, Result, VirtualClock,
    async_trait,
};

use crate::runner::fixture::{Fixture, Observed, QUEUE, TestHandler};

#[derive(Debug)]
struct CountingStore {
    inner: MemoryBackend,
    calls: AtomicU32,
    announcements: AtomicU32,
    /// Answers only the first announcement.
    hangs: bool,
    registry: bool,
}

impl CountingStore {
    fn new(clock: &Arc<VirtualClock>) -> Self {
        Self {
            inner: MemoryBackend::new(clock.clone()),
            calls: AtomicU32::new(0),
            announcements: AtomicU32::new(0),
            hangs: false,
            registry: true,
        }
    }

    fn count(&self) -> &dyn Backend {
        self.calls.fetch_add(1, Ordering::SeqCst);
        &self.inner
    }
}

#[async_trait]
impl Layer for CountingStore {
    fn inner(&self) -> &dyn Backend {
        &self.inner
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.registry = self.registry;
        capabilities
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.count().claim(params).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.count().stats(queues).await
    }

    async fn announce(&self, announcement: Announcement) -> Result<()> {
        let earlier = self.announcements.fetch_add(1, Ordering::SeqCst);
        if self.hangs && earlier > 0 {
            std::future::pending::<()>().await;
        }
        self.count().announce(announcement).await
    }
}

async fn runners(fixture: &Fixture) -> Vec<RegisteredRunner> {
    fixture.dq.runners().await.unwrap()
}

#[tokio::test]
async fn a_runner_is_listed_with_its_queues_and_recent_runs_until_it_stops() {
    let mut fixture = Fixture::new().await;
    let started = fixture.clock.now();
    let handle = TestHandler::new(async |job, payload| {
        match payload.as_str() {
            "stays" => job.cancelled().await,
            "fails" => return Err("no luck".into()),
            _ => {}
        }
        job.sleep(2.seconds()).await;
        Ok(Outcome::Done)
    });
    fixture.start(|runner| runner.name("mail-1").concurrency(9).handler(handle));
    fixture.pass(1.seconds()).await;
    let listed = runners(&fixture).await;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].name, "mail-1");
    assert!(listed[0].announced_at.since(started) < 1.seconds(), "at start");
    let info = listed[0].info.as_ref().unwrap();
    assert_eq!((info.pid, info.started, info.concurrency), (std::process::id(), started, 9));
    assert!(!info.version.is_empty());
    assert_eq!((info.queues[0].queue.as_str(), info.queues[0].concurrency), (QUEUE, 16));
    assert_eq!((info.running, info.queues[0].lateness.count()), (0, 0));

    fixture.schedule("stays").await;
    fixture.schedule("done").await;
    fixture.advance_until(100.millis(), &Observed::Finished("Done".to_owned())).await;
    fixture.pass(15.seconds()).await;
    let info = runners(&fixture).await.remove(0).info.unwrap();
    assert_eq!((info.running, info.queues[0].running, info.skew_ms), (1, 1, Some(0)));
    assert_eq!((info.queues[0].lateness.count(), info.queues[0].failed), (1, 0));
    let job = fixture.dq.queue(QUEUE).unwrap().schedule("\"x\"", "application/json");
    assert!(job.after(5.minutes()).await.unwrap().is_stored());
    let forecast = fixture.dq.forecast_all(10.minutes()).await.unwrap().remove(0);
    let capacity = forecast.capacity.unwrap();
    assert!((200.0..300.0).contains(&capacity), "{capacity} jobs in a minute");
    let peak = forecast.peak().unwrap();
    assert_eq!((peak.due, peak.backlog), (1, Some(0)));
    assert_eq!(forecast.drained_by(peak), Some(peak.from + 1.minutes()));
    let run_time = info.queues[0].run_time.quantile(1.0).unwrap();
    assert!(run_time >= 2.seconds() && run_time < 3.seconds(), "{run_time:?}");

    fixture.schedule("fails").await;
    fixture.advance_until(100.millis(), &Observed::Finished("Retry".to_owned())).await;
    fixture.pass(15.seconds()).await;
    let failed = runners(&fixture).await.remove(0).info.unwrap().queues[0].failed;
    assert!(failed >= 1, "{failed}: it may have run again meanwhile");

    fixture.stop_by(100.millis()).await;
    assert_eq!(runners(&fixture).await, []);
}

#[tokio::test]
async fn what_cannot_be_read_is_listed_by_name_with_its_bytes() {
    let fixture = Fixture::new().await;
    let foreign = Announcement::new("other", "not JSON", 1.minutes());
    Backend::announce(&**fixture.dq.backend(), foreign).await.unwrap();
    let listed = runners(&fixture).await;
    assert_eq!(listed[0].name, "other");
    let unreadable = listed[0].info.as_ref().unwrap_err();
    assert_eq!(unreadable.raw, "not JSON");
    assert!(unreadable.error.contains("line 1"), "{}", unreadable.error);
}

#[tokio::test]
async fn a_runner_is_listed_until_three_announcements_were_not_answered() {
    let clock = Arc::new(VirtualClock::default());
    let store = Arc::new(CountingStore { hangs: true, ..CountingStore::new(&clock) });
    let mut fixture = Fixture::with_backend(store.clone(), clock.clone()).await;
    fixture.start(|runner| runner.handler(TestHandler::done()));
    fixture.pass(56.seconds()).await;
    assert_eq!(store.announcements.load(Ordering::SeqCst), 4);
    assert_eq!(runners(&fixture).await.len(), 1);
    fixture.pass(6.seconds()).await;
    assert_eq!(runners(&fixture).await, []);
    fixture.abort().await;
}

#[tokio::test]
async fn an_idle_runner_makes_at_most_eleven_calls_in_ten_seconds_and_announces_itself_if_it_can() {
    for (registry, announced) in [(true, 20..=21), (false, 0..=0)] {
        let clock = Arc::new(VirtualClock::default());
        let store = Arc::new(CountingStore { registry, ..CountingStore::new(&clock) });
        let mut fixture = Fixture::with_backend(store.clone(), clock.clone()).await;
        fixture.start(|runner| runner.handler(TestHandler::done()));
        fixture.pass(5.minutes()).await;
        let calls = store.calls.load(Ordering::SeqCst);
        let announcements = store.announcements.load(Ordering::SeqCst);
        assert!(announced.contains(&announcements), "{announcements}");
        assert!((280..=330).contains(&calls), "{calls} calls in 300 s");
        fixture.stop().await;
    }
}
