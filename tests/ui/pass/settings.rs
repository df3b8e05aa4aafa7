//! Handlers with all settings and with some, and their schedules.

use std::time::Duration;

use dq::config::{BackoffSettings, ScheduleSettings};
use dq::prelude::*;
use dq::{Backoff, CatchUp, HandlerFn, Overlap, Priority};

#[delay_handler(
    "ALL",
    max_attempts = 3,
    timeout = "1h 30m",
    lease = "1day",
    concurrency = 8,
    priority = "high",
    reserve = 4,
    max_running = 3,
    rate = "10/1s burst 20",
    max_losses = 1,
    backoff(initial = "500ms", factor = 1, max = "1h", jitter = 0.0),
    crate = "::dq"
)]
async fn all() {}

#[delay_handler("SOME", timeout = "none", lease = "1s", backoff())]
async fn some() {}

#[delay_handler("FINE", timeout = "1500us", backoff(max = "1s", jitter = 1.0))]
async fn fine() {}

#[delay_handler(
    "REPORT",
    cron = "30 2 * * *",
    tz = "Europe/Stockholm",
    catch_up = "all:3",
    overlap = "queue_one",
    deadline = "1h",
    jitter = "10s"
)]
async fn report(ctx: JobContext) {
    let _ = ctx.occurrence();
}

#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Region {
    name: String,
}

#[delay_handler("SYNC", every = "90s", catch_up = "none", overlap = "allow")]
async fn sync(State(_): State<u8>, region: Region) {
    let _ = region.name;
}

#[delay_handler("NOON", cron = "0 12 * * *", blocking)]
fn noon() {}

fn main() {
    let settings = all::settings();
    assert_eq!(settings.max_attempts, Some(3));
    assert_eq!(settings.timeout, Some(Duration::from_secs(5_400)));
    assert_eq!(settings.lease, Some(Duration::from_secs(86_400)));
    assert_eq!(settings.concurrency, Some(8));
    assert_eq!(settings.priority, Some(Priority::High));
    assert_eq!(settings.reserve, Some(4.into()));
    assert_eq!(settings.max_running, Some(3.into()));
    assert_eq!(settings.rate, Some("10/1s burst 20".parse::<dq::Rate>().unwrap().into()));
    assert_eq!(settings.max_losses, Some(1));
    let backoff = Backoff {
        initial: Duration::from_millis(500),
        factor: 1.0,
        max: Duration::from_secs(3_600),
        jitter: 0.0,
    };
    assert_eq!(settings.backoff, backoff.into());

    let settings = some::settings();
    assert_eq!(settings.timeout, Some(Duration::MAX));
    assert_eq!(settings.max_attempts, None);
    assert_eq!(settings.backoff, BackoffSettings::new());

    let settings = fine::settings();
    assert_eq!(settings.timeout, Some(Duration::from_micros(1_500)));
    // The configuration decides the other settings.
    let backoff = BackoffSettings::new().max(Duration::from_secs(1)).jitter(1.0);
    assert_eq!(settings.backoff, backoff);

    let expected = ScheduleSettings::new()
        .cron("30 2 * * *", "Europe/Stockholm")
        .payload(&())
        .unwrap()
        .catch_up(CatchUp::All(3.try_into().unwrap()))
        .overlap(Overlap::QueueOne)
        .deadline(1.hours())
        .jitter(10.seconds());
    assert_eq!(report::schedule().unwrap(), Some(expected));
    let expected = ScheduleSettings::new()
        .every(90.seconds())
        .payload(&Region::default())
        .unwrap()
        .catch_up(CatchUp::None)
        .overlap(Overlap::Allow);
    assert_eq!(sync::schedule().unwrap(), Some(expected));
    let expected = ScheduleSettings::new().cron("0 12 * * *", "UTC").payload(&()).unwrap();
    assert_eq!(noon::schedule().unwrap(), Some(expected));
    assert_eq!(some::schedule().unwrap(), None);
}
