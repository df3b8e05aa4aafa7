//! A memory store on a virtual clock, and [`Ops`] over it.

use std::sync::Arc;

use dq_core::config::QueueSettings;
use dq_core::{
    Announcement, Backend, ClaimParams, Clock, DeadKind, DeadReason, Dq, Due, DurationExt,
    HistoryLimit, HistoryLimits, JobId, LeasedJob, MemoryBackend, QueueName, Settlement, Target,
    Timestamp, Verdict, VirtualClock, Want,
};
use dq_ops::{
    Actor, FindingView, JobContent, JobFilter, Ops, Role, ScheduleRequest, Session, parse_target,
    parse_timestamp,
};
use serde_json::{Value, json};

/// A Saturday, the day before Stockholm sets its clocks forward.
pub(crate) const START: &str = "2027-03-27T10:00:00Z";

pub(crate) struct Fixture {
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) ops: Ops,
    /// The queue `MAIL`, which the fixture's jobs are in unless a test says otherwise.
    pub(crate) queue: QueueName,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with_defaults(QueueSettings::new()).await
    }

    /// Starts at [`START`], with these settings for all queues.
    pub(crate) async fn with_defaults(settings: QueueSettings) -> Self {
        let clock = Arc::new(VirtualClock::new(at(START)));
        let history = HistoryLimits::all(HistoryLimit::default());
        let store = MemoryBackend::with_history(Arc::clone(&clock) as Arc<dyn Clock>, history);
        let builder = Dq::builder().backend(Arc::new(store)).clock(Arc::clone(&clock) as _);
        let dq = builder.defaults(settings).connect().await.unwrap();
        Self { clock, ops: Ops::new(dq), queue: queue("MAIL") }
    }

    /// Returns another `Ops` over the same store, with this redaction.
    pub(crate) fn redacting(
        &self,
        redact: impl Fn(&mut JobContent) + Send + Sync + 'static,
    ) -> Ops {
        Ops::builder(self.ops.dq().clone()).redact(redact).build()
    }

    pub(crate) fn session(&self, role: Role) -> Session {
        self.ops.session(Actor::new("ann", role))
    }

    pub(crate) fn admin(&self) -> Session {
        self.session(Role::Admin)
    }

    pub(crate) async fn schedule(&self, key: &str, due: Due) -> JobId {
        let mut request = ScheduleRequest::new("1");
        (request.key, request.due) = (Some(key.to_owned()), due);
        self.admin().schedule(&self.queue, request).await.unwrap().id
    }

    pub(crate) async fn schedule_in(&self, queue: &QueueName, due: Due) {
        let mut request = ScheduleRequest::new("1");
        request.due = due;
        self.admin().schedule(queue, request).await.unwrap();
    }

    pub(crate) async fn claim(&self) -> Vec<LeasedJob> {
        let wants = [Want::new(self.queue.clone(), 100, 1.minutes())];
        self.ops.dq().backend().claim(ClaimParams::new(&wants, 100, "web-3")).await.unwrap().jobs
    }

    pub(crate) async fn settle(&self, job: &LeasedJob, verdict: Verdict) {
        let settlements = [Settlement::new(job.lease(), verdict)];
        self.ops.dq().backend().settle(&settlements).await.unwrap();
    }

    pub(crate) async fn run_all(&self, verdict: Verdict) {
        for job in self.claim().await {
            self.settle(&job, verdict.clone()).await;
        }
    }

    pub(crate) async fn dead(&self, reasons: &[&str]) {
        for (number, reason) in reasons.iter().enumerate() {
            self.schedule(&format!("dead-{number}"), Due::NOW).await;
            self.run_all(Verdict::dead(DeadReason::new(DeadKind::Exhausted, *reason))).await;
            self.clock.advance(1.seconds());
        }
    }

    /// Announces a runner for a week: an idle one without queues, but with these fields.
    pub(crate) async fn announce(&self, name: &str, fields: Value) {
        let mut info = json!({
            "format": 1, "host": "h", "pid": 7, "version": "0.1.0", "started": 1_000,
            "stopping": false, "concurrency": 8, "running": 0, "skew_ms": null,
            "omitted_queues": 0, "queues": [],
        });
        for (field, value) in fields.as_object().unwrap() {
            info[field] = value.clone();
        }
        let announcement = Announcement::new(name, info.to_string(), 7.days());
        self.ops.dq().backend().announce(announcement).await.unwrap();
    }

    pub(crate) async fn only_finding(&self) -> FindingView {
        let mut findings = self.admin().check().await;
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.remove(0)
    }
}

pub(crate) fn at(text: &str) -> Timestamp {
    parse_timestamp(text).unwrap()
}

pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

pub(crate) fn key(text: &str) -> Target {
    parse_target(&format!("key:{text}")).unwrap()
}

pub(crate) fn filter(fields: Value) -> JobFilter {
    serde_json::from_value(fields).unwrap()
}

pub(crate) fn serves_mail(concurrency: u64, running: u64) -> Value {
    json!({
        "queue": "MAIL", "concurrency": concurrency, "running": running, "lateness": [],
        "run_time": [],
    })
}
