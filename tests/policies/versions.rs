//! Payload versions and earlier handler names.

use dq::JobState;
use dq::prelude::*;
use serde::{Deserialize, Serialize};

use crate::{Shop, kit};

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
