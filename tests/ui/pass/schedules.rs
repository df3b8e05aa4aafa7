//! Handler schedules.

use dq::config::ScheduleSettings;
use dq::prelude::*;
use dq::{CatchUp, HandlerFn, Overlap};

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

#[delay_handler("PLAIN")]
async fn plain() {}

fn settings<H: HandlerFn>() -> Option<ScheduleSettings> {
    H::schedule().unwrap()
}

fn main() {
    let expected = ScheduleSettings::new()
        .cron("30 2 * * *", "Europe/Stockholm")
        .payload(&())
        .unwrap()
        .catch_up(CatchUp::All(3.try_into().unwrap()))
        .overlap(Overlap::QueueOne)
        .deadline(1.hours())
        .jitter(10.seconds());
    assert_eq!(settings::<report>(), Some(expected));
    let expected = ScheduleSettings::new()
        .every(90.seconds())
        .payload(&Region::default())
        .unwrap()
        .catch_up(CatchUp::None)
        .overlap(Overlap::Allow);
    assert_eq!(settings::<sync>(), Some(expected));
    let expected = ScheduleSettings::new().cron("0 12 * * *", "UTC").payload(&()).unwrap();
    assert_eq!(settings::<noon>(), Some(expected));
    assert_eq!(settings::<plain>(), None);
}
