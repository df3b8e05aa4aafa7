//! Demo schedules: some run while you look, some at night.

use dq_core::{Dq, DurationExt, Overlap, Result};
use serde_json::{Value, json};

use super::handlers::{CATALOG, MEETINGS, REPORTS, Work};

pub(super) async fn declare(dq: &Dq) -> Result<()> {
    let schedule = |queue: &str, name: &str, about: Value, takes_ms: u64| {
        let payload = serde_json::to_value(Work::new(about, takes_ms)).unwrap_or_default();
        dq.recurring_in(queue, name).payload(payload)
    };
    let sync = |shop: &str, takes_ms| {
        schedule(CATALOG, &format!("catalog-sync-{shop}"), json!({ "shop": shop }), takes_ms)
    };
    sync("berlin", 400).every(30.seconds()).jitter(10.seconds()).upsert().await?;
    sync("shanghai", 900).every(1.minutes()).overlap(Overlap::QueueOne).upsert().await?;
    let report = |name, about| schedule(REPORTS, name, about, 2_000);
    let nightly = report("nightly-report", json!({ "report": "turnover", "format": "pdf" }));
    nightly.cron("30 2 * * *", "Europe/Stockholm").deadline(6.hours()).upsert().await?;
    let monthly = report("monthly-statement", json!({ "report": "statement" }));
    monthly.cron("0 6 1 * *", "Asia/Shanghai").upsert().await?;
    let digest = json!({ "meeting": "weekly digest", "room": "Curie" });
    let digest = schedule(MEETINGS, "weekly-digest", digest, 60);
    digest.cron("0 9 * * MON", "America/New_York").upsert().await?;
    Ok(())
}
