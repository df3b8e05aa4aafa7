//! The defects: each is a layer over a correct backend that overrides the methods it breaks.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::{
    Backend, Cancelled, Capabilities, ClaimParams, Claimed, Clock, Due, FencingToken, JobId,
    JobRef, Layer, Lease, LeasedJob, NewJob, OnRunning, OperateReport, Operation, QueueName,
    QueueStats, Renewal, Renewed, Reschedule, Rescheduled, Result, Scheduled, Settled, Settlement,
    Timestamp, Verdict, VirtualClock, Wakeups, async_trait,
};
use futures_util::future::BoxFuture;

/// Implements [`Layer`] for a type whose field `$inner` holds the backend.
macro_rules! layer {
    ($name:ident, $inner:tt, { $($method:tt)* }) => {
        #[async_trait]
        impl Layer for $name {
            fn inner(&self) -> &dyn Backend {
                &*self.$inner
            }

            $($method)*
        }
    };
}

/// Changes jobs before they are stored, verdicts before they are settled, or the answer to a claim.
macro_rules! changes {
    ($(#[$doc:meta])* $name:ident, schedule, $change:expr) => {
        changes! { $(#[$doc])* $name, {
            async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
                let change: fn(&mut NewJob) = $change;
                jobs.iter_mut().for_each(change);
                self.0.schedule(jobs).await
            }
        }}
    };
    ($(#[$doc:meta])* $name:ident, settle, $change:expr) => {
        changes! { $(#[$doc])* $name, {
            async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
                let change: fn(&mut Verdict) = $change;
                let mut settlements = settlements.to_vec();
                settlements.iter_mut().for_each(|settlement| change(&mut settlement.verdict));
                self.0.settle(&settlements).await
            }
        }}
    };
    ($(#[$doc:meta])* $name:ident, claim, $change:expr) => {
        changes! { $(#[$doc])* $name, {
            async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
                let change: fn(&mut Claimed) = $change;
                let mut claimed = self.0.claim(params).await?;
                change(&mut claimed);
                Ok(claimed)
            }
        }}
    };
    ($(#[$doc:meta])* $name:ident, { $($method:tt)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name(pub(crate) Arc<dyn Backend>);

        layer!($name, 0, { $($method)* });
    };
}

changes!(IgnoresKeys, schedule, |job| job.key = None);
changes!(IgnoresRemember, schedule, |job| job.remember = Duration::ZERO);
changes!(
    /// Pins ids a thousand times longer than asked.
    PinsTooLong,
    schedule,
    |job| job.remember *= 1_000
);
changes!(RefusesToDetach, schedule, |job| job.on_running = OnRunning::Refuse);
changes!(ForgetsAttempts, settle, |verdict| {
    if let Verdict::Retry { due, .. } = verdict {
        *verdict = Verdict::Snooze(*due);
    }
});
changes!(
    /// Starts a next step with the last step's payload and counts.
    RepeatsTheStep,
    settle,
    |verdict| {
        if let Verdict::Again { due, .. } = verdict {
            *verdict = Verdict::Snooze(*due);
        }
    }
);
changes!(
    /// Counts neither deliveries nor lost leases.
    ForgetsCounts,
    claim,
    |claimed| {
        for leased in &mut claimed.jobs {
            leased.job.deliveries -= leased.job.losses;
            leased.job.losses = 0;
        }
    }
);
changes!(ReordersEqualTimes, claim, |claimed| {
    // As a heap does.
    claimed.jobs.reverse();
    claimed.jobs.sort_by_key(|leased| leased.job.due);
});
changes!(OmitsNextDue, claim, |claimed| claimed.next_due = None);

#[derive(Debug)]
pub(crate) struct NoCapabilities(pub(crate) Arc<dyn Backend>);

layer!(NoCapabilities, 0, {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let mut stats = self.0.stats(queues).await?;
        stats.iter_mut().for_each(|queue| queue.totals = None);
        Ok(stats)
    }
});

#[derive(Debug)]
pub(crate) struct FastClock(pub(crate) Arc<VirtualClock>);

const AHEAD: Duration = Duration::from_millis(5);

impl Clock for FastClock {
    fn now(&self) -> Timestamp {
        self.0.now() + AHEAD
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()> {
        self.0.sleep_until(until - AHEAD)
    }
}

/// Its store uses [`FastClock`], but it reports the true time.
#[derive(Debug)]
pub(crate) struct FiresEarly {
    pub(crate) inner: Arc<dyn Backend>,
    pub(crate) clock: Arc<VirtualClock>,
}

layer!(FiresEarly, inner, {
    async fn now(&self) -> Result<Timestamp> {
        Ok(self.clock.now())
    }

    async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        for job in &mut jobs {
            job.due = Due::At(job.due.resolve(self.clock.now()));
        }
        self.inner.schedule(jobs).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let mut claimed = self.inner.claim(params).await?;
        claimed.now = self.clock.now();
        Ok(claimed)
    }
});

#[derive(Debug)]
pub(crate) struct TruncatesToSeconds {
    pub(crate) inner: Arc<dyn Backend>,
    pub(crate) clock: Arc<VirtualClock>,
}

layer!(TruncatesToSeconds, inner, {
    async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        for job in &mut jobs {
            let due = job.due.resolve(self.clock.now()).as_millis();
            job.due = Due::At(Timestamp::from_millis(due / 1_000 * 1_000));
        }
        self.inner.schedule(jobs).await
    }
});

/// Cancels jobs with an expired lease.
#[derive(Debug)]
pub(crate) struct LosesExpired {
    pub(crate) inner: Arc<dyn Backend>,
    /// Queue and lease end.
    pub(crate) leases: Mutex<HashMap<JobId, (QueueName, Timestamp)>>,
}

layer!(LosesExpired, inner, {
    async fn before(&self, _: &'static str) -> Result<()> {
        let now = self.inner.now().await?;
        let mut expired = Vec::new();
        self.leases.lock().unwrap().retain(|id, (queue, until)| {
            if *until <= now {
                expired.push(JobRef::new(queue.clone(), *id));
            }
            *until > now
        });
        self.inner.cancel(&expired).await.map(drop)
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let claimed = self.inner.claim(params).await?;
        let leases = claimed
            .jobs
            .iter()
            .map(|leased| (leased.job.id, (leased.job.queue.clone(), leased.leased_until)));
        self.leases.lock().unwrap().extend(leases);
        Ok(claimed)
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let answers = self.inner.renew(renewals).await?;
        for (renewal, answer) in renewals.iter().zip(&answers) {
            if let Renewed::Until(until) = answer {
                let lease = (renewal.lease.queue.clone(), *until);
                self.leases.lock().unwrap().insert(renewal.lease.job, lease);
            }
        }
        Ok(answers)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let answers = self.inner.settle(settlements).await?;
        for (settlement, answer) in settlements.iter().zip(&answers) {
            if *answer == Settled::Accepted {
                self.leases.lock().unwrap().remove(&settlement.lease.job);
            }
        }
        Ok(answers)
    }
});

/// Leases jobs again to a concurrent claim that finds none.
#[derive(Debug)]
pub(crate) struct LeasesTwice {
    pub(crate) inner: Arc<dyn Backend>,
    pub(crate) claims: AtomicUsize,
    /// From the last successful claim.
    pub(crate) last: Mutex<Vec<LeasedJob>>,
}

layer!(LeasesTwice, inner, {
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let only_claim = self.claims.fetch_add(1, Ordering::AcqRel) == 0;
        tokio::task::yield_now().await;
        let mut claimed = self.inner.claim(params).await?;
        let mut last = std::mem::take(&mut *self.last.lock().unwrap());
        last.retain(|leased| params.wants.iter().any(|want| want.queue == leased.job.queue));
        if !only_claim && claimed.jobs.is_empty() && params.limit >= last.len() {
            claimed.jobs = last;
        } else {
            self.last.lock().unwrap().clone_from(&claimed.jobs);
        }
        self.claims.fetch_sub(1, Ordering::AcqRel);
        Ok(claimed)
    }
});

/// Replaces any token for a leased job with the newest.
#[derive(Debug)]
pub(crate) struct AcceptsStale {
    pub(crate) inner: Arc<dyn Backend>,
    pub(crate) tokens: Mutex<HashMap<JobId, FencingToken>>,
}

layer!(AcceptsStale, inner, {
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let claimed = self.inner.claim(params).await?;
        let tokens = claimed.jobs.iter().map(|leased| (leased.job.id, leased.token));
        self.tokens.lock().unwrap().extend(tokens);
        Ok(claimed)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let mut settlements = settlements.to_vec();
        for settlement in &mut settlements {
            if let Some(token) = self.tokens.lock().unwrap().get(&settlement.lease.job) {
                settlement.lease.token = *token;
            }
        }
        self.inner.settle(&settlements).await
    }
});

#[derive(Debug)]
pub(crate) struct RenewsAnything(pub(crate) Arc<dyn Backend>);

layer!(RenewsAnything, 0, {
    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let now = self.0.now().await?;
        self.0.renew(renewals).await?;
        Ok(renewals.iter().map(|renewal| Renewed::Until(now + renewal.lease_for)).collect())
    }
});

#[derive(Debug)]
pub(crate) struct IgnoresCancel(pub(crate) Arc<dyn Backend>);

layer!(IgnoresCancel, 0, {
    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        Ok(vec![Cancelled::Cancelled; jobs.len()])
    }
});

/// Keeps the existing job on a conflict, but answers `Replaced`.
#[derive(Debug)]
pub(crate) struct KeepsReplaced(pub(crate) Arc<dyn Backend>);

layer!(KeepsReplaced, 0, {
    async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        for job in &mut jobs {
            job.on_conflict = dq_core::OnConflict::Keep;
        }
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        let answers = self.0.schedule(jobs).await?;
        let wrong_answer = |(answer, id): (Scheduled, JobId)| match answer {
            Scheduled::Kept(receipt) => Scheduled::Replaced(dq_core::Receipt { id, ..receipt }),
            answer => answer,
        };
        Ok(answers.into_iter().zip(ids).map(wrong_answer).collect())
    }
});

#[derive(Debug)]
pub(crate) struct IgnoresLimit(pub(crate) Arc<dyn Backend>);

layer!(IgnoresLimit, 0, {
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.0.claim(ClaimParams::new(params.wants, usize::MAX, params.worker)).await
    }
});

/// Counts skipped jobs as done.
#[derive(Debug)]
pub(crate) struct WrongTotals(pub(crate) Arc<dyn Backend>);

layer!(WrongTotals, 0, {
    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let mut stats = self.0.stats(queues).await?;
        for totals in stats.iter_mut().filter_map(|stats| stats.totals.as_mut()) {
            // The sum stays right, so that the counts add up.
            totals.done += std::mem::take(&mut totals.skipped);
        }
        Ok(stats)
    }
});

#[derive(Debug)]
pub(crate) struct IgnoresPause(pub(crate) Arc<dyn Backend>);

layer!(IgnoresPause, 0, {
    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        match operation {
            Operation::Pause { .. } => Ok(OperateReport::new(1)),
            operation => self.0.operate(operation).await,
        }
    }
});

/// Purges all queues that start with the name.
#[derive(Debug)]
pub(crate) struct PurgesByPrefix(pub(crate) Arc<dyn Backend>);

layer!(PurgesByPrefix, 0, {
    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let Operation::Purge { queue } = operation else {
            return self.0.operate(operation).await;
        };
        for stats in self.0.stats(&[]).await? {
            if stats.queue != *queue && stats.queue.as_str().starts_with(queue.as_str()) {
                self.0.operate(Operation::Purge { queue: &stats.queue }).await?;
            }
        }
        self.0.operate(operation).await
    }
});

/// Answers a repeated call as a conflict.
#[derive(Debug)]
pub(crate) struct AnswersRepeatsAsKept {
    pub(crate) inner: Arc<dyn Backend>,
    pub(crate) ids: Mutex<HashSet<JobId>>,
}

layer!(AnswersRepeatsAsKept, inner, {
    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let answers = self.inner.schedule(jobs).await?;
        let mut ids = self.ids.lock().unwrap();
        let wrong_answer = |answer| match answer {
            Scheduled::Created(receipt) if !ids.insert(receipt.id) => Scheduled::Kept(receipt),
            answer => answer,
        };
        Ok(answers.into_iter().map(wrong_answer).collect())
    }
});

/// Stores a job with an ended id under another id.
#[derive(Debug)]
pub(crate) struct StoresEndedAgain(pub(crate) Arc<dyn Backend>);

layer!(StoresEndedAgain, 0, {
    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let mut answers = self.0.schedule(jobs.clone()).await?;
        for (mut job, answer) in jobs.into_iter().zip(&mut answers) {
            let in_queue = JobRef::new(job.queue.clone(), job.id);
            if let Scheduled::Ended(receipt) = *answer
                && self.0.get(&in_queue).await?.is_some()
            {
                let mut id = job.id.to_bytes();
                id[15] ^= 1;
                job.id = JobId::from_bytes(id);
                let _stored = self.0.schedule(vec![job]).await?;
                *answer = Scheduled::Created(receipt);
            }
        }
        Ok(answers)
    }
});

/// Settles the job as done and schedules another with its id.
#[derive(Debug)]
pub(crate) struct StepsInTwoCalls(pub(crate) Arc<dyn Backend>);

layer!(StepsInTwoCalls, 0, {
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let mut done = settlements.to_vec();
        for settlement in &mut done {
            if matches!(settlement.verdict, Verdict::Again { .. }) {
                settlement.verdict = Verdict::Done;
            }
        }
        let answers = self.0.settle(&done).await?;
        let steps = settlements.iter().zip(&answers).filter_map(|(settlement, answer)| {
            let Lease { queue, job, .. } = settlement.lease.clone();
            match &settlement.verdict {
                Verdict::Again { due, payload } if *answer == Settled::Accepted => {
                    Some(NewJob::new(job, queue, *due, payload.clone()))
                }
                _ => None,
            }
        });
        self.0.schedule(steps.collect()).await?;
        Ok(answers)
    }
});

/// Stores the job without the key.
#[derive(Debug)]
pub(crate) struct LeavesTheKey(pub(crate) Arc<dyn Backend>);

layer!(LeavesTheKey, 0, {
    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let mut answers = Vec::new();
        for mut job in jobs {
            let detach = job.on_running == OnRunning::Detach;
            job.on_running = OnRunning::Refuse;
            let mut answer = self.0.schedule(vec![job.clone()]).await?;
            if detach && matches!(answer[0], Scheduled::AlreadyRunning(_)) {
                job.key = None;
                answer = self.0.schedule(vec![job]).await?;
            }
            answers.append(&mut answer);
        }
        Ok(answers)
    }
});

#[derive(Debug)]
pub(crate) struct ReportsPurgesAsComplete(pub(crate) Arc<dyn Backend>);

layer!(ReportsPurgesAsComplete, 0, {
    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        Ok(OperateReport::new(self.0.operate(operation).await?.affected))
    }
});

#[derive(Debug)]
pub(crate) struct LosesHints(pub(crate) Arc<dyn Backend>);

layer!(LosesHints, 0, {
    async fn listen(&self, _: &[QueueName]) -> Result<Wakeups> {
        Ok(Wakeups::new().0)
    }
});

#[derive(Debug)]
pub(crate) struct ReportsRunningAsMoved(pub(crate) Arc<dyn Backend>);

layer!(ReportsRunningAsMoved, 0, {
    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        let now = self.0.now().await?;
        let answers = self.0.reschedule(moves).await?;
        let wrong_answer =
            |(answer, change): (Rescheduled, &Reschedule)| match (answer, &change.job.target) {
                (Rescheduled::AlreadyRunning, dq_core::Target::Id(id)) => {
                    Rescheduled::Moved(dq_core::Receipt { id: *id, due: change.due.resolve(now) })
                }
                (answer, _) => answer,
            };
        Ok(answers.into_iter().zip(moves).map(wrong_answer).collect())
    }
});
