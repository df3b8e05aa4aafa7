//! Every way to break a promise that the suite has to catch.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::{
    Backend, Cancelled, Capabilities, ClaimParams, Claimed, Clock, Due, FencingToken, JobId,
    JobRef, LeasedJob, MemoryBackend, NewJob, OperateReport, Operation, QueueName, QueueStats,
    Renewal, Renewed, Reschedule, Rescheduled, Result, Scheduled, Settled, Settlement, Timestamp,
    Verdict, VirtualClock, Wakeups, async_trait,
};
use dq_testkit::faults::{Layer, Layered};
use dq_testkit::history::Clause;
use futures_util::future::BoxFuture;

use super::subject::{Make, Opened, process};

/// A broken backend, with who must notice.
pub(crate) struct Break {
    pub(crate) name: &'static str,
    pub(crate) make: Make,
    /// The trials that are there for just this.
    pub(crate) caught_by: &'static [&'static str],
    /// What a history of it proves, if clients can see the breach.
    pub(crate) proven: Option<Clause>,
}

pub(crate) const BREAKS: &[Break] = &[
    Break {
        name: "fires early",
        make: |opened| {
            let ahead = Arc::new(Ahead(opened.clock.clone()));
            let inner = process(Arc::new(MemoryBackend::new(ahead)));
            layer(FiresEarly { inner, clock: opened.clock })
        },
        caught_by: &["due/never_early_by_a_millisecond", "lease/lapse_is_exact_to_the_millisecond"],
        proven: Some(Clause::NeverEarly),
    },
    Break {
        name: "cuts due times to seconds",
        make: |opened| layer(CutsToSeconds { inner: opened.process, clock: opened.clock }),
        caught_by: &["due/never_early_by_a_millisecond"],
        proven: Some(Clause::NeverEarly),
    },
    Break {
        name: "loses jobs in a crash",
        make: |opened| match opened.before {
            0 => opened.process,
            _ => process(Arc::new(MemoryBackend::new(opened.clock))),
        },
        caught_by: &["crash/jobs_survive_as_they_were", "crash/each_state_survives"],
        proven: None,
    },
    Break {
        name: "loses jobs whose lease lapses",
        make: |opened| layer(LosesLapsed { inner: opened.process, leases: Mutex::default() }),
        caught_by: &["lease/lapse_brings_the_job_back"],
        proven: Some(Clause::NothingLost),
    },
    Break {
        name: "leases one job twice in a race",
        make: |opened| {
            layer(LeasesTwice {
                inner: opened.process,
                claims: AtomicUsize::new(0),
                last: Mutex::default(),
            })
        },
        caught_by: &["lease/movers_race_and_each_job_is_leased_once"],
        proven: Some(Clause::OneAtATime),
    },
    Break {
        name: "accepts stale tokens",
        make: |opened| layer(AcceptsStale { inner: opened.process, tokens: Mutex::default() }),
        caught_by: &["lease/stale_token_settles_nothing"],
        proven: Some(Clause::OneAtATime),
    },
    Break {
        name: "renews whatever it is asked to",
        make: |opened| layer(RenewsAnything(opened.process)),
        caught_by: &["lease/stale_token_renews_nothing", "lease/renewal_after_the_lapse_is_lost"],
        proven: None,
    },
    Break {
        name: "ignores cancels",
        make: |opened| layer(IgnoresCancel(opened.process)),
        caught_by: &["cancel/cancelled_job_never_starts"],
        proven: Some(Clause::SaysWhatHappened),
    },
    Break {
        name: "ignores keys",
        make: |opened| layer(IgnoresKeys(opened.process)),
        caught_by: &["keys/keep_leaves_the_first", "keys/replace_puts_the_new_in_its_place"],
        proven: None,
    },
    Break {
        name: "keeps the old payload after a replace",
        make: |opened| layer(KeepsReplaced(opened.process)),
        caught_by: &["keys/replace_puts_the_new_in_its_place"],
        proven: Some(Clause::SaysWhatHappened),
    },
    Break {
        name: "forgets counts when a lease lapses",
        make: |opened| layer(ForgetsCounts(opened.process)),
        caught_by: &["lease/lapse_brings_the_job_back", "lease/lapse_counts_every_time"],
        proven: None,
    },
    Break {
        name: "forgets failed attempts",
        make: |opened| layer(ForgetsAttempts(opened.process)),
        caught_by: &["settle/retry_counts_each_failure"],
        proven: Some(Clause::FailureCounted),
    },
    Break {
        name: "mixes up equal due times",
        make: |opened| layer(MixesUp(opened.process)),
        caught_by: &["due/equal_times_in_order_of_insertion"],
        proven: None,
    },
    Break {
        name: "does not say when to come again",
        make: |opened| layer(HasNoNextDue(opened.process)),
        caught_by: &["claim/asking_for_nothing_says_when", "claim/next_due_is_the_next_due_time"],
        proven: None,
    },
    Break {
        name: "ignores the limit of a claim",
        make: |opened| layer(IgnoresLimit(opened.process)),
        caught_by: &["claim/at_most_limit_in_all"],
        proven: None,
    },
    Break {
        name: "counts totals wrong",
        make: |opened| layer(CountsWrong(opened.process)),
        caught_by: &["stats/totals_count_each_way_out"],
        proven: None,
    },
    Break {
        name: "ignores a pause",
        make: |opened| layer(IgnoresPause(opened.process)),
        caught_by: &["pause/paused_queue_gives_nothing"],
        proven: None,
    },
    Break {
        name: "purges what resembles the queue",
        make: |opened| layer(PurgesByPrefix(opened.process)),
        caught_by: &["isolation/names_that_resemble_each_other_stay_apart"],
        proven: None,
    },
    Break {
        name: "loses every hint",
        make: |opened| layer(LosesHints(opened.process)),
        caught_by: &["wake/first_job_wakes", "wake/hint_is_kept_until_it_is_looked_at"],
        proven: None,
    },
    Break {
        name: "moves jobs that run",
        make: |opened| layer(SaysMoved(opened.process)),
        caught_by: &["reschedule/running_job_is_not_moved"],
        proven: None,
    },
];

/// Nothing but the core, and all that is beyond it refused by `Checked`.
pub(crate) fn bare(opened: Opened) -> Arc<dyn Backend> {
    layer(Bare(opened.process))
}

fn layer<L: Layer>(layer: L) -> Arc<dyn Backend> {
    Arc::new(Layered(layer))
}

/// A [`Layer`] that differs in a method or two.
macro_rules! layer {
    ($name:ident, $inner:tt, { $($method:tt)* }) => {
        #[async_trait]
        impl Layer for $name {
            fn inner(&self) -> &Arc<dyn Backend> {
                &self.$inner
            }

            $($method)*
        }
    };
}

#[derive(Debug)]
struct Bare(Arc<dyn Backend>);

layer!(Bare, 0, {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let stats = self.0.stats(queues).await?;
        Ok(stats.into_iter().map(|stats| QueueStats { totals: None, ..stats }).collect())
    }
});

/// Runs five milliseconds ahead.
#[derive(Debug)]
struct Ahead(Arc<VirtualClock>);

const AHEAD: Duration = Duration::from_millis(5);

impl Clock for Ahead {
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

#[derive(Debug)]
struct FiresEarly {
    inner: Arc<dyn Backend>,
    clock: Arc<VirtualClock>,
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
        let claimed = self.inner.claim(params).await?;
        Ok(Claimed { now: self.clock.now(), ..claimed })
    }
});

#[derive(Debug)]
struct CutsToSeconds {
    inner: Arc<dyn Backend>,
    clock: Arc<VirtualClock>,
}

layer!(CutsToSeconds, inner, {
    async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        for job in &mut jobs {
            let due = job.due.resolve(self.clock.now()).as_millis();
            job.due = Due::At(Timestamp::from_millis(due / 1_000 * 1_000));
        }
        self.inner.schedule(jobs).await
    }
});

#[derive(Debug)]
struct LosesLapsed {
    inner: Arc<dyn Backend>,
    leases: Mutex<HashMap<JobId, (QueueName, Timestamp)>>,
}

layer!(LosesLapsed, inner, {
    async fn before(&self, _: &'static str) -> Result<()> {
        let now = self.inner.now().await?;
        let mut lapsed = Vec::new();
        self.leases.lock().unwrap().retain(|id, (queue, until)| {
            if *until <= now {
                lapsed.push(JobRef::new(queue.clone(), *id));
            }
            *until > now
        });
        self.inner.cancel(&lapsed).await.map(drop)
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

/// Looks and takes in two steps, so that two may take what both saw.
#[derive(Debug)]
struct LeasesTwice {
    inner: Arc<dyn Backend>,
    claims: AtomicUsize,
    last: Mutex<Vec<LeasedJob>>,
}

layer!(LeasesTwice, inner, {
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let alone = self.claims.fetch_add(1, Ordering::AcqRel) == 0;
        tokio::task::yield_now().await;
        let mut claimed = self.inner.claim(params).await?;
        let mut last = std::mem::take(&mut *self.last.lock().unwrap());
        last.retain(|leased| params.wants.iter().any(|want| want.queue == leased.job.queue));
        if !alone && claimed.jobs.is_empty() && params.limit >= last.len() {
            claimed.jobs = last;
        } else {
            self.last.lock().unwrap().clone_from(&claimed.jobs);
        }
        self.claims.fetch_sub(1, Ordering::AcqRel);
        Ok(claimed)
    }
});

#[derive(Debug)]
struct AcceptsStale {
    inner: Arc<dyn Backend>,
    tokens: Mutex<HashMap<JobId, FencingToken>>,
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
struct RenewsAnything(Arc<dyn Backend>);

layer!(RenewsAnything, 0, {
    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let now = self.0.now().await?;
        self.0.renew(renewals).await?;
        Ok(renewals.iter().map(|renewal| Renewed::Until(now + renewal.lease_for)).collect())
    }
});

#[derive(Debug)]
struct IgnoresCancel(Arc<dyn Backend>);

layer!(IgnoresCancel, 0, {
    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        Ok(vec![Cancelled::Cancelled; jobs.len()])
    }
});

#[derive(Debug)]
struct IgnoresKeys(Arc<dyn Backend>);

layer!(IgnoresKeys, 0, {
    async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        for job in &mut jobs {
            job.key = None;
        }
        self.0.schedule(jobs).await
    }
});

#[derive(Debug)]
struct KeepsReplaced(Arc<dyn Backend>);

layer!(KeepsReplaced, 0, {
    async fn schedule(&self, mut jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        for job in &mut jobs {
            job.on_conflict = dq_core::OnConflict::Keep;
        }
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        let answers = self.0.schedule(jobs).await?;
        let lie = |(answer, id): (Scheduled, JobId)| match answer {
            Scheduled::Kept(receipt) => Scheduled::Replaced(dq_core::Receipt { id, ..receipt }),
            answer => answer,
        };
        Ok(answers.into_iter().zip(ids).map(lie).collect())
    }
});

#[derive(Debug)]
struct ForgetsCounts(Arc<dyn Backend>);

layer!(ForgetsCounts, 0, {
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let mut claimed = self.0.claim(params).await?;
        for leased in &mut claimed.jobs {
            leased.job.deliveries -= leased.job.losses;
            leased.job.losses = 0;
        }
        Ok(claimed)
    }
});

#[derive(Debug)]
struct ForgetsAttempts(Arc<dyn Backend>);

layer!(ForgetsAttempts, 0, {
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let mut settlements = settlements.to_vec();
        for settlement in &mut settlements {
            if let Verdict::Retry(due) = settlement.verdict {
                settlement.verdict = Verdict::Snooze(due);
            }
        }
        self.0.settle(&settlements).await
    }
});

#[derive(Debug)]
struct MixesUp(Arc<dyn Backend>);

layer!(MixesUp, 0, {
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let mut claimed = self.0.claim(params).await?;
        // By due time only, as a heap would have it.
        claimed.jobs.reverse();
        claimed.jobs.sort_by_key(|leased| leased.job.due);
        Ok(claimed)
    }
});

#[derive(Debug)]
struct HasNoNextDue(Arc<dyn Backend>);

layer!(HasNoNextDue, 0, {
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        Ok(Claimed { next_due: None, ..self.0.claim(params).await? })
    }
});

#[derive(Debug)]
struct IgnoresLimit(Arc<dyn Backend>);

layer!(IgnoresLimit, 0, {
    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.0.claim(ClaimParams { limit: usize::MAX, ..params }).await
    }
});

#[derive(Debug)]
struct CountsWrong(Arc<dyn Backend>);

layer!(CountsWrong, 0, {
    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let mut stats = self.0.stats(queues).await?;
        for totals in stats.iter_mut().filter_map(|stats| stats.totals.as_mut()) {
            // It still adds up.
            totals.done += std::mem::take(&mut totals.skipped);
        }
        Ok(stats)
    }
});

#[derive(Debug)]
struct IgnoresPause(Arc<dyn Backend>);

layer!(IgnoresPause, 0, {
    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        match operation {
            Operation::Pause { .. } => Ok(OperateReport { affected: 1 }),
            operation => self.0.operate(operation).await,
        }
    }
});

#[derive(Debug)]
struct PurgesByPrefix(Arc<dyn Backend>);

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

#[derive(Debug)]
struct LosesHints(Arc<dyn Backend>);

layer!(LosesHints, 0, {
    async fn listen(&self, _: &[QueueName]) -> Result<Wakeups> {
        Ok(Wakeups::new().0)
    }
});

#[derive(Debug)]
struct SaysMoved(Arc<dyn Backend>);

layer!(SaysMoved, 0, {
    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        let now = self.0.now().await?;
        let answers = self.0.reschedule(moves).await?;
        let lie = |(answer, wish): (Rescheduled, &Reschedule)| match (answer, &wish.job.target) {
            (Rescheduled::AlreadyRunning, dq_core::Target::Id(id)) => {
                Rescheduled::Moved(dq_core::Receipt { id: *id, due: wish.due.resolve(now) })
            }
            (answer, _) => answer,
        };
        Ok(answers.into_iter().zip(moves).map(lie).collect())
    }
});
