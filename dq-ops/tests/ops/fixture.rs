//! A store on a virtual clock.

use std::sync::Arc;

use bytes::Bytes;
use dq_core::{
    Backend, ClaimParams, Clock, DeadKind, DeadReason, Dq, Due, DurationExt, HistoryLimit,
    HistoryLimits, JobId, LeasedJob, MemoryBackend, QueueName, Settlement, Target, Verdict,
    VirtualClock, Want,
};
use dq_ops::{Actor, JobFilter, Ops, Role, ScheduleRequest, Session, parse_target};

pub(crate) struct Fixture {
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) dq: Dq,
    pub(crate) ops: Ops,
    pub(crate) queue: QueueName,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let clock = Arc::new(VirtualClock::default());
        let history = HistoryLimits::all(HistoryLimit::default());
        let store = MemoryBackend::with_history(Arc::clone(&clock) as Arc<dyn Clock>, history);
        let store = Arc::new(store);
        let dq = Dq::builder()
            .backend(store)
            .clock(Arc::clone(&clock) as Arc<dyn Clock>)
            .connect()
            .await
            .unwrap();
        let (ops, queue) = (Ops::new(dq.clone()), QueueName::new("MAIL").unwrap());
        Self { clock, dq, ops, queue }
    }

    pub(crate) fn session(&self, role: Role) -> Session {
        self.ops.session(Actor::new("ann", role))
    }

    pub(crate) fn admin(&self) -> Session {
        self.session(Role::Admin)
    }

    pub(crate) async fn schedule(&self, key: &str, payload: &str, due: Due) -> JobId {
        let mut request = ScheduleRequest::new(Bytes::from(payload.to_owned()));
        (request.key, request.due) = (Some(key.to_owned()), due);
        self.admin().schedule(&self.queue, request).await.unwrap().id
    }

    pub(crate) async fn claim(&self) -> Vec<LeasedJob> {
        let wants = [Want::new(self.queue.clone(), 100, 1.minutes())];
        self.dq.backend().claim(ClaimParams::new(&wants, 100, "web-3")).await.unwrap().jobs
    }

    pub(crate) async fn settle(&self, job: &LeasedJob, verdict: Verdict) {
        self.dq.backend().settle(&[Settlement::new(job.lease(), verdict)]).await.unwrap();
    }

    /// Schedules one job per reason and lets it die.
    pub(crate) async fn dead(&self, reasons: &[&str]) -> Vec<JobId> {
        let mut ids = Vec::new();
        for (number, reason) in reasons.iter().enumerate() {
            ids.push(self.schedule(&format!("dead-{number}"), "1", Due::NOW).await);
            for job in self.claim().await {
                let reason = DeadReason::new(DeadKind::Exhausted, *reason);
                self.settle(&job, Verdict::Dead { reason, failed: true }).await;
            }
            self.clock.advance(1.seconds());
        }
        ids
    }
}

pub(crate) fn with_error(text: &str) -> JobFilter {
    let mut filter = JobFilter::default();
    filter.error = Some(text.to_owned());
    filter
}

pub(crate) fn with_key_prefix(text: &str) -> JobFilter {
    let mut filter = JobFilter::default();
    filter.key_prefix = Some(text.to_owned());
    filter
}

pub(crate) fn key(text: &str) -> Target {
    parse_target(&format!("key:{text}")).unwrap()
}
