//! Spreads due times, and forecasts due jobs.

use std::sync::Arc;
use std::time::Duration;

use dq::config::QueueSettings;
use dq::prelude::*;
use dq::{Clock, ErrorKind, MemoryBackend, VirtualClock};

use crate::guards::guarded;
use crate::versions::{OrderV3, versioned};
use crate::{Order, Shop};

/// A client that spreads the due times of `versioned` over 30 seconds.
struct Spreading {
    clock: Arc<VirtualClock>,
    dq: Dq,
    /// The due time before it is spread.
    at: Timestamp,
}

impl Spreading {
    async fn new() -> Self {
        let config = r#"
            [backend]
            type = "memory"
            [queues.VERSIONED]
            spread = "30s"
        "#;
        let config = dq::config::Config::from_toml(config).unwrap();
        let clock = Arc::new(VirtualClock::default());
        let dq = Dq::builder().config(config).clock(clock.clone()).connect().await.unwrap();
        let at = clock.now() + 1.hours();
        Self { clock, dq, at }
    }

    fn schedule(&self) -> dq::Schedule {
        self.dq.schedule::<versioned>(OrderV3 { number: 1, currency: "EUR".to_owned() })
    }

    fn due(&self, job: dq::Schedule) -> Timestamp {
        job.into_job().unwrap().due.resolve(self.clock.now())
    }

    fn delay(&self, job: dq::Schedule) -> Duration {
        self.due(job).since(self.at)
    }
}

#[tokio::test]
async fn due_times_are_spread_over_a_window_and_never_earlier() {
    let spreading = Spreading::new().await;
    let delays: Vec<_> =
        (0..1_000).map(|_| spreading.delay(spreading.schedule().at(spreading.at))).collect();
    assert!(delays.iter().all(|delay| *delay <= 30.seconds()), "{delays:?}");
    for part in 0..10_u64 {
        let part = (part * 3).seconds()..(part * 3 + 3).seconds();
        let jobs = delays.iter().filter(|delay| part.contains(*delay)).count();
        assert!((50..200).contains(&jobs), "{jobs} of 1,000 jobs in {part:?}");
    }
}

#[tokio::test]
async fn a_job_without_a_spread_or_a_due_time_is_not_spread() {
    let spreading = Spreading::new().await;
    let unspread = spreading.schedule().at(spreading.at).spread(Duration::ZERO);
    assert_eq!(spreading.delay(unspread), Duration::ZERO);
    let now = spreading.schedule().into_job().unwrap();
    assert_eq!(now.due, dq::Due::NOW, "a job without a due time is due at once");
}

#[tokio::test]
async fn a_repeated_call_has_the_same_due_time_unless_it_widens_the_spread() {
    let spreading = Spreading::new().await;
    let id = spreading.dq.new_id();
    let due = || spreading.due(spreading.schedule().id(id).at(spreading.at));
    assert_eq!(due(), due());
    let wide = spreading.schedule().after(1.hours()).spread(365.days()).id(id);
    assert!(spreading.due(wide) >= due());
}

#[tokio::test]
async fn a_runner_refuses_a_spread() {
    let spreading = Spreading::new().await;
    let runner = spreading.dq.runner().only(["VERSIONED"]).state(Shop::default());
    let runner = runner.queue("VERSIONED", QueueSettings::new().spread(1.hours()));
    assert!(runner.build().unwrap_err().to_string().contains("spread"));
}

#[tokio::test]
async fn a_forecast_counts_what_is_due_by_minute() {
    let clock = Arc::new(VirtualClock::default());
    // 22:13:30 UTC: 30 seconds before the next minute.
    clock.set(Timestamp::from_millis(1_700_000_010_000));
    let backend = Arc::new(MemoryBackend::new(clock.clone()));
    let dq = Dq::builder().backend(backend).clock(clock.clone()).connect().await.unwrap();
    let peak_time = clock.now() + 10.minutes();
    for second in [0, 0, 1, 90, 3_600 * 30] {
        let job = dq.schedule::<guarded>(Order { id: 1 }).at(peak_time + (second as u64).seconds());
        assert!(job.await.unwrap().is_stored());
    }
    assert!(dq.schedule::<guarded>(Order { id: 2 }).await.unwrap().is_stored());
    let forecasts = dq.forecast_all(1.days()).await.unwrap();
    let [forecast] = &forecasts[..] else { panic!("{forecasts:?}") };
    assert_eq!((forecast.queue.as_str(), forecast.overdue), ("GUARDED", 1));
    assert_eq!(forecast.minutes.len(), 24 * 60);
    let due: u64 = forecast.minutes.iter().map(|minute| minute.due).sum();
    assert_eq!(due, 4, "one is due after the window, one is due already");
    let peak = forecast.peak().unwrap();
    assert_eq!(peak.due, 3);
    assert!(peak.from <= peak_time && peak_time < peak.from + 1.minutes(), "{peak:?}");
    assert_eq!(peak.drained_by, None, "no runner is known");
    for window in [59.seconds(), 8.days()] {
        assert_eq!(dq.forecast_all(window).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
