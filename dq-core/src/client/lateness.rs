//! Compares queues with their lateness objectives.

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
    /// Compares each queue with its [lateness objective](crate::config::QueueSettings::lateness),
    /// by queue name.
    ///
    /// Counts the last hour's starts, as current runners announce them, and the late jobs that wait
    /// now. The objective is this client's, unless all runners use another one.
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
    pub async fn lateness(&self) -> Result<Vec<LatenessStatus>> {
        let mut stats = self.stats().await?;
        let runners = match self.backend().capabilities().registry {
            true => Some(self.runners().await?),
            false => None,
        };
        let announced = runners.iter().flatten().filter_map(|runner| runner.info.as_ref().ok());
        for served in announced.flat_map(|info| &info.queues) {
            // A store may not list a queue when all its jobs have ended.
            if !stats.iter().any(|known| known.queue == served.queue) {
                stats.push(QueueStats::empty(served.queue.clone()));
            }
        }
        let now = self.backend().now().await?;
        self.lateness_in(&stats, runners.as_deref(), now).await
    }

    /// Computes [`lateness`](Self::lateness) from counts and announcements read at the store's time
    /// `now`. `runners` is `None` if the store keeps no announcements.
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
            let facts = LatenessFacts {
                within: Some(within),
                paused: stats.paused,
                limit: stats.limit(),
                has_group_limit: stats.may_wait_for_groups(),
                ..announced.facts
            };
            let counts = LatenessCounts::sum(objective, &announced.counts);
            let hindrance = LatenessCause::of(&facts);
            statuses.push(LatenessStatus::new(stats.queue.clone(), counts, waiting, hindrance));
        }
        statuses.sort_by(|a, b| a.queue.cmp(&b.queue));
        Ok(statuses)
    }
}

impl ClientShared {
    fn objective_of(&self, queue: &QueueName) -> Option<LatenessObjective> {
        self.queues.get(queue).and_then(|settings| settings.lateness).or(self.defaults.lateness)
    }
}

impl Stores {
    /// Counts jobs that are at least this late; at most 1 if a store cannot count by due time.
    /// `stats` belongs to the queue.
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
    /// Collects the runners' announced facts about a queue.
    pub fn announced(queue: &QueueName, runners: &[RegisteredRunner]) -> Self {
        let mut facts = Self::default();
        let mut run_time = Histogram::default();
        // Sums saturate because another program may announce any number.
        let (mut listening, mut free) = (0_u64, 0_u64);
        for runner in runners {
            // The info of a newer version may be unreadable.
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

    /// Returns the configured objective if a runner announces it or none announces any, else the
    /// first runner's, because runners count starts by their own objective.
    fn objective(&self, configured: Option<LatenessObjective>) -> Option<LatenessObjective> {
        let mut announced = self.counts.iter().map(|counts| counts.objective);
        let first = announced.clone().next();
        configured.filter(|own| first.is_none() || announced.any(|other| other == *own)).or(first)
    }
}
