//! How the queues with a lateness objective compare with it.

use std::time::Duration;

use super::dq::Dq;
use super::runners::RegisteredRunner;
use super::shared::ClientShared;
use super::stores::Stores;
use crate::backend::{Backend, QueueStats};
use crate::error::Result;
use crate::model::{
    Histogram, LatenessCause, LatenessCounts, LatenessFacts, LatenessObjective, LatenessStatus,
    QueueName, Timestamp,
};

impl Dq {
    /// How each queue with a [lateness objective](crate::config::QueueSettings::lateness) compares
    /// with it, ordered by queue: the starts of the last hour, as the runners that run now have
    /// announced them, and the late jobs that wait now. So an objective is missed also if no runner
    /// runs. The objective is that of this client's configuration, unless all runners compare with
    /// another one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> dq_core::Result<()> {
    /// # let dq = dq_core::Dq::connect("memory:").await?;
    /// for status in dq.lateness().await? {
    ///     if status.is_missed() {
    ///         println!("{}: {status}", status.queue);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Unavailable` if a store cannot be reached, `Closed` after [`close`](Self::close).
    pub async fn lateness(&self) -> Result<Vec<LatenessStatus>> {
        let mut stats = self.stats().await?;
        let runners = match self.backend().capabilities().registry {
            true => Some(self.runners().await?),
            false => None,
        };
        let announced = runners.iter().flatten().filter_map(|runner| runner.info.as_ref().ok());
        for served in announced.flat_map(|info| &info.queues) {
            // A store may not list a queue whose jobs have all ended.
            if !stats.iter().any(|known| known.queue == served.queue) {
                stats.push(QueueStats::empty(served.queue.clone()));
            }
        }
        let now = self.backend().now().await?;
        self.lateness_in(&stats, runners.as_deref(), now).await
    }

    /// [`lateness`](Self::lateness) of these queues, from counts and announcements that were read
    /// already, at the time `now` of the store; `runners` is `None` if the store does not keep
    /// announcements.
    ///
    /// # Errors
    /// As [`lateness`](Self::lateness).
    pub async fn lateness_in(
        &self,
        stats: &[QueueStats],
        runners: Option<&[RegisteredRunner]>,
        now: Timestamp,
    ) -> Result<Vec<LatenessStatus>> {
        let mut statuses = Vec::new();
        for stats in stats.iter().filter(|stats| !stats.queue.is_reserved()) {
            let announced = AnnouncedStarts::of(&stats.queue, runners);
            let own = self.shared().objective_of(&stats.queue);
            let Some(objective) = announced.objective(own) else { continue };
            let within = objective.within();
            let waiting = self.shared().stores.overdue(stats, now, within).await?;
            let facts =
                LatenessFacts { within: Some(within), paused: stats.paused, ..announced.facts };
            let counts = LatenessCounts::sum(objective, &announced.counts);
            let hindrance = LatenessCause::of(&facts);
            statuses.push(LatenessStatus::new(stats.queue.clone(), counts, waiting, hindrance));
        }
        statuses.sort_by(|a, b| a.queue.cmp(&b.queue));
        Ok(statuses)
    }
}

impl ClientShared {
    /// The lateness objective of a queue in the configuration.
    fn objective_of(&self, queue: &QueueName) -> Option<LatenessObjective> {
        self.queues.get(queue).and_then(|settings| settings.lateness).or(self.defaults.lateness)
    }
}

impl Stores {
    /// Number of jobs of a queue that have waited at least this long since their due time; `stats`
    /// are those of the queue. At most 1 if a store cannot count jobs by due time.
    pub(crate) async fn overdue(
        &self,
        stats: &QueueStats,
        now: Timestamp,
        at_least: Duration,
    ) -> Result<u64> {
        let latest_due = now - at_least;
        if stats.ready == 0 || stats.next_due.is_none_or(|due| due > latest_due) {
            return Ok(0);
        }
        if !self.iter().all(|store| store.capabilities().forecast) {
            return Ok(1);
        }
        let edges = [Timestamp::from_millis(0), latest_due + Duration::from_millis(1)];
        Ok(self.forecast(&stats.queue, &edges).await?.iter().sum())
    }
}

impl LatenessFacts {
    /// What the runners have announced of a queue.
    #[must_use]
    pub fn announced(queue: &QueueName, runners: &[RegisteredRunner]) -> Self {
        let mut facts = Self::default();
        let mut run_time = Histogram::default();
        // Sums saturate: another program may have announced any number.
        let (mut listening, mut free) = (0_u64, 0_u64);
        for runner in runners {
            // What a newer version says of itself cannot be read.
            let Ok(info) = &runner.info else {
                facts.incomplete = true;
                continue;
            };
            facts.incomplete |= info.omitted_queues > 0;
            let Some(served) = info.served(queue) else { continue };
            listening += 1;
            facts.running = facts.running.saturating_add(served.running);
            facts.slots = facts.slots.saturating_add(served.concurrency.min(info.concurrency));
            free = free.saturating_add(info.free_slots(queue).unwrap_or_default());
            run_time.merge(&served.run_time);
            let skew = info.skew_ms.map(|skew| Duration::from_millis(skew.unsigned_abs()));
            facts.skew = facts.skew.max(skew);
            facts.claim_time = facts.claim_time.max(info.claim_ms.map(Duration::from_millis));
        }
        facts.run_time = run_time.mean();
        (facts.runners, facts.free_slots) = (Some(listening), Some(free));
        facts
    }
}

/// What the runners have announced of a queue.
#[derive(Debug, Default)]
struct AnnouncedStarts {
    facts: LatenessFacts,
    counts: Vec<LatenessCounts>,
}

impl AnnouncedStarts {
    fn of(queue: &QueueName, runners: Option<&[RegisteredRunner]>) -> Self {
        let Some(runners) = runners else { return Self::default() };
        let infos = runners.iter().filter_map(|runner| runner.info.as_ref().ok());
        let counts = infos.filter_map(|info| info.served(queue)?.objective).collect();
        Self { facts: LatenessFacts::announced(queue, runners), counts }
    }

    /// The objective to compare with: that of the configuration if a runner has announced it, or
    /// none has announced any; else that of the first runner. Starts are counted by objective, so
    /// with one that no runner has the queue would seem to have no starts.
    fn objective(&self, configured: Option<LatenessObjective>) -> Option<LatenessObjective> {
        let mut announced = self.counts.iter().map(|counts| counts.objective);
        let first = announced.clone().next();
        configured.filter(|own| first.is_none() || announced.any(|other| other == *own)).or(first)
    }
}
