//! Runs example jobs as their payloads tell.

use std::time::Duration;

use dq_core::config::{BackoffSettings, QueueSettings};
use dq_core::{DelayHandler, DurationExt, HandlerResult, JobContext, Outcome, QueueCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Work {
    #[serde(flatten)]
    about: Value,
    takes_ms: u64,
    /// The error of failing runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    fails_with: Option<String>,
    /// The first attempt that succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    until_attempt: Option<u32>,
    /// Why the run is skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    skips_with: Option<String>,
    #[serde(skip)]
    pub(super) attempts: Option<u32>,
}

impl Work {
    pub(super) fn new(about: Value, takes_ms: u64) -> Self {
        Self { about, takes_ms, ..Self::default() }
    }

    pub(super) fn fails(self, error: impl Into<String>) -> Self {
        Self { fails_with: Some(error.into()), ..self }
    }

    pub(super) fn until(self, attempt: u32) -> Self {
        Self { until_attempt: Some(attempt), ..self }
    }

    pub(super) fn skips(self, reason: &str) -> Self {
        Self { skips_with: Some(reason.to_owned()), ..self }
    }

    pub(super) fn attempts(self, attempts: u32) -> Self {
        Self { attempts: Some(attempts), ..self }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Example {
    pub(super) queue: &'static str,
    concurrency: usize,
    backoff: Duration,
}

pub(super) const ORDERS: &str = "ORDER_TIMEOUT";
pub(super) const MEETINGS: &str = "MEETING_REMINDER";
pub(super) const TICKETS: &str = "TICKET_ESCALATION";
pub(super) const COURIERS: &str = "COURIER_WARNING";
/// Queues of schedules.
pub(super) const CATALOG: &str = "CATALOG_SYNC";
pub(super) const REPORTS: &str = "REPORT";
/// Paused.
pub(super) const NEWSLETTER: &str = "NEWSLETTER";
/// Served by no runner.
pub(super) const INVOICES: &str = "INVOICE_EXPORT";

/// The handlers. Courier jobs take long and have few slots.
pub(super) static ALL: [Example; 7] = [
    Example { queue: ORDERS, concurrency: 8, backoff: Duration::from_secs(30) },
    Example { queue: MEETINGS, concurrency: 8, backoff: Duration::from_secs(30) },
    Example { queue: TICKETS, concurrency: 4, backoff: Duration::from_secs(60) },
    Example { queue: COURIERS, concurrency: 2, backoff: Duration::from_secs(20) },
    Example { queue: CATALOG, concurrency: 2, backoff: Duration::from_secs(10) },
    Example { queue: REPORTS, concurrency: 2, backoff: Duration::from_secs(60) },
    Example { queue: NEWSLETTER, concurrency: 4, backoff: Duration::from_secs(60) },
];

impl DelayHandler for Example {
    type Payload = Work;

    fn code(&self) -> impl QueueCode {
        self.queue
    }

    fn settings(&self) -> QueueSettings {
        QueueSettings::new()
            .concurrency(self.concurrency)
            .max_attempts(5)
            .lateness("95% < 1s".parse().expect("a valid objective"))
            .backoff(BackoffSettings::new().initial(self.backoff).factor(3.0).max(1.hours()))
    }

    async fn handle(&self, ctx: JobContext, work: Work) -> HandlerResult {
        tokio::time::sleep(Duration::from_millis(work.takes_ms)).await;
        let fails = work.until_attempt.is_none_or(|first| ctx.attempt() < first);
        if let Some(error) = work.fails_with.filter(|_| fails) {
            return Err(error.into());
        }
        Ok(work.skips_with.map_or(Outcome::Done, Outcome::skip))
    }
}
