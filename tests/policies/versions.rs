//! Payload versions and earlier handler names, also of schedules.

use dq::config::ScheduleSettings;
use dq::prelude::*;
use dq::{DelayHandler, JobState};
use dq_testkit::TestKit;
use serde::{Deserialize, Serialize};

use crate::{Shop, clocked, kit};

#[derive(Deserialize)]
struct OrderV1 {
    id: u64,
}

#[derive(Deserialize)]
struct OrderV2 {
    number: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct OrderV3 {
    pub(crate) number: u64,
    pub(crate) currency: String,
}

fn upgrade_v1(old: OrderV1) -> OrderV2 {
    OrderV2 { number: old.id.to_string() }
}

fn upgrade_v2(old: OrderV2) -> dq::Result<OrderV3, std::num::ParseIntError> {
    Ok(OrderV3 { number: old.number.parse()?, currency: "EUR".to_owned() })
}

#[delay_handler(
    "VERSIONED",
    version = 3,
    upgrade_from(1 = upgrade_v1, 2 = upgrade_v2),
    aliases = ["OLD_NAME"]
)]
pub(crate) async fn versioned(
    ctx: JobContext,
    State(shop): State<Shop>,
    order: OrderV3,
) -> HandlerResult {
    shop.write(format!("{} {} {}", ctx.queue(), order.number, order.currency));
    let raised = OrderV3 { number: order.number + 1, ..order.clone() };
    Ok(if order.number < 10 { Outcome::again(1.minutes(), &raised)? } else { Outcome::Done })
}

/// Schedules a versioned job, as an older or newer build does.
async fn schedule_version(dq: &Dq, queue: &str, version: Option<&str>, payload: &str) -> dq::JobId {
    let mut job = dq.queue(queue).unwrap().schedule(payload.to_owned(), "application/json");
    if let Some(version) = version {
        job = job.header(dq::Headers::SCHEMA_VERSION, version);
    }
    job.await.unwrap().id()
}

#[tokio::test]
async fn payloads_of_all_older_versions_and_names_are_read() {
    let shop = Shop::default();
    let kit = kit(&shop).await;
    let new = OrderV3 { number: 40, currency: "SEK".to_owned() };
    let new = kit.dq().schedule::<versioned>(new).await.unwrap();
    let view = kit.dq().get::<versioned>(&new).await.unwrap().unwrap();
    assert_eq!(view.job.headers.get(dq::Headers::SCHEMA_VERSION), Some("3"));
    schedule_version(kit.dq(), "VERSIONED", None, r#"{"id":10}"#).await;
    schedule_version(kit.dq(), "VERSIONED", Some("2"), r#"{"number":"20"}"#).await;
    schedule_version(kit.dq(), "OLD_NAME", Some("1"), r#"{"id":30}"#).await;
    assert!(kit.dq().check_pending().await.unwrap().is_readable());
    assert_eq!(kit.advance(1.seconds()).await.len(), 4);
    let mut lines = shop.lines();
    lines.sort();
    assert_eq!(
        lines,
        ["OLD_NAME 30 EUR", "VERSIONED 10 EUR", "VERSIONED 20 EUR", "VERSIONED 40 SEK"]
    );
}

#[tokio::test]
async fn a_step_of_an_upgraded_job_has_the_new_version() {
    let shop = Shop::default();
    let kit = kit(&shop).await;
    schedule_version(kit.dq(), "VERSIONED", Some("1"), r#"{"id":8}"#).await;
    assert_eq!(kit.advance(1.hours()).await.len(), 3);
    assert_eq!(shop.lines(), ["VERSIONED 8 EUR", "VERSIONED 9 EUR", "VERSIONED 10 EUR"]);
}

#[tokio::test]
async fn a_job_of_a_newer_version_waits_and_the_report_names_it() {
    let shop = Shop::default();
    let kit = kit(&shop).await;
    let id = schedule_version(kit.dq(), "VERSIONED", Some("4"), r#"{"new":true}"#).await;
    let broken = schedule_version(kit.dq(), "VERSIONED", Some("2"), r#"{"number":"x"}"#).await;
    schedule_version(kit.dq(), "ELSEWHERE", None, "1").await;
    // Also reads the payload that a schedule gives its jobs.
    let recurring = kit.dq().recurring_in("VERSIONED", "nightly").cron("0 0 1 1 *", "UTC");
    assert!(recurring.payload(serde_json::json!({"new": 1})).upsert().await.unwrap());
    let report = kit.dq().check_pending().await.unwrap();
    assert!(!report.is_readable());
    let text = report.to_string();
    for words in [
        "ELSEWHERE version 1: 1 jobs, no handler (has its code changed? keep the old one in `aliases`)"
            .to_owned(),
        format!("VERSIONED version 2: 1 jobs, 1 unreadable; job {broken}: "),
        "cannot be upgraded: invalid digit".to_owned(),
        format!("VERSIONED version 4: 1 jobs, 1 unreadable; job {id}: "),
        "this build reads 1 to 3".to_owned(),
    ] {
        assert!(text.contains(&words), "{words:?} in {text}");
    }
    let runs = kit.advance(1.hours()).await;
    assert_eq!((runs.len(), runs[0].id, runs[0].outcome()), (1, broken, "dead"));
    let view = kit.dq().get::<versioned>(id).await.unwrap().unwrap();
    assert_eq!((view.state, view.job.attempts), (JobState::Scheduled, 0), "nothing is lost");
    assert_eq!(view.payload::<serde_json::Value>().unwrap(), serde_json::json!({"new": true}));
}

fn unchanged(old: Option<u32>) -> Option<u32> {
    old
}

#[delay_handler(
    "REPORT",
    every = "1h",
    version = 2,
    upgrade_from(1 = unchanged),
    aliases = ["NIGHTLY"]
)]
async fn report(ctx: JobContext, State(shop): State<Shop>, _payload: Option<u32>) {
    let version = ctx.headers().get(dq::Headers::SCHEMA_VERSION);
    shop.write(format!("{} {}", ctx.queue(), version.unwrap_or("without a version")));
}

#[tokio::test]
async fn the_jobs_of_a_schedule_have_the_version_of_their_payload() {
    let shop = Shop::default();
    let kit = TestKit::with_schedules(|runner| runner.only(["REPORT"]).state(shop.clone()));
    let kit = kit.await.unwrap();
    let dq = kit.dq();
    kit.advance(1.hours()).await;
    assert_eq!(shop.lines(), ["REPORT 2"], "declared by the handler");
    assert!(dq.recurring::<report>("REPORT").remove().await.unwrap());

    let typed = || dq.recurring::<report>("typed");
    assert!(typed().every(1.hours()).upsert().await.unwrap());
    kit.advance(1.hours()).await;
    assert!(typed().run_now().await.unwrap().is_some());
    kit.advance(1.minutes()).await;
    assert_eq!(shop.lines()[1..], ["REPORT 2", "REPORT 2"], "by the type of the queue");
    assert!(typed().remove().await.unwrap());

    let by_name = || dq.recurring_in("REPORT", "by-name").every(1.hours());
    assert!(by_name().upsert().await.unwrap());
    kit.advance(1.hours()).await;
    assert!(by_name().schema_version(2).upsert().await.unwrap());
    kit.advance(1.hours()).await;
    assert_eq!(shop.lines()[3..], ["REPORT without a version", "REPORT 2"], "by name");
}

/// The handler of [`report`]'s jobs before it had a new code.
struct Nightly;

impl DelayHandler for Nightly {
    type Payload = Option<u32>;

    fn code(&self) -> impl dq::QueueCode {
        "NIGHTLY"
    }

    fn schedule(&self) -> Option<ScheduleSettings> {
        Some(ScheduleSettings::new().every(1.hours()))
    }

    async fn handle(&self, _ctx: JobContext, _payload: Option<u32>) -> HandlerResult {
        Ok(Outcome::Done)
    }
}

#[tokio::test]
async fn a_handler_with_a_new_code_takes_its_schedule_along() {
    let (clock, dq) = clocked().await;
    let old = dq.runner().without_linked_handlers().handler(Nightly).build().unwrap();
    old.run_due().await.unwrap();
    assert!(dq.recurring_in("NIGHTLY", "called").every(1.days()).upsert().await.unwrap());
    assert!(dq.recurring_in("NIGHTLY", "NIGHTLY").pause().await.unwrap());
    drop(old);

    let shop = Shop::default();
    let new = dq.runner().without_linked_handlers().register::<report>().state(shop.clone());
    let new = new.build().unwrap();
    clock.advance(2.hours());
    new.run_due().await.unwrap();
    let mut names: Vec<_> = dq.schedules().await.unwrap().into_iter().map(|it| it.name).collect();
    names.sort();
    assert_eq!(names, ["REPORT", "called"]);
    assert!(shop.lines().is_empty(), "it is still paused");
    assert!(dq.recurring::<report>("REPORT").resume().await.unwrap());
    clock.advance(1.hours());
    new.run_due().await.unwrap();
    assert_eq!(shop.lines(), ["REPORT 2"]);
}
