//! The backend: each call goes to the native one, and then alarms are set.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dq_core::config::Environment;
use dq_core::{
    Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed, Finding, JobRef, JobView,
    NewJob, OperateReport, Operation, Page, QueueName, QueueStats, Renewal, Renewed, Reschedule,
    Rescheduled, Result, Scheduled, Settled, Settlement, Timestamp, Verdict, Wakeups,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::alarm::{Alarms, Names};
use super::canary::Cage;
use super::check::Notifications;
use super::config::RedisExpiryConfig;
use super::ears::Ears;
use super::watch::Watch;
use crate::backend::RedisBackend;

/// Delayed jobs in Redis, as [`RedisBackend`] keeps them, with keys that expire when they are due.
#[derive(Debug)]
pub struct RedisExpiryBackend {
    native: RedisBackend,
    alarms: Alarms,
    ears: Arc<Ears>,
    watch: Arc<Watch>,
    /// Ends `watch` when this is dropped.
    end: DropGuard,
}

impl RedisExpiryBackend {
    /// Connects, and checks that the server will do. Whether notifications work is found out
    /// meanwhile: see [`notifications`](Self::notifications).
    ///
    /// # Errors
    /// Those of [`RedisBackend::connect`].
    pub async fn connect(config: &RedisExpiryConfig, environment: &Environment) -> Result<Self> {
        let native = RedisBackend::connect(&config.native(), environment).await?;
        let link = Arc::clone(&native.store.link);
        let listeners = Arc::clone(native.wakeups.listeners());
        let names = Names::new(&config.prefix);
        native.store.prove_alarms(&names.proof()).await?;
        let entropy = Arc::clone(&environment.entropy);
        let cage = Cage::new(&config.prefix, Arc::clone(&link), entropy);
        let ears = Arc::new(Ears::new(listeners, names.clone(), cage));
        let alarms = Alarms::new(Arc::clone(&link), names, Arc::clone(&environment.clock));
        let asked = alarms.elapsed();
        alarms.learn(asked, native.now().await?);
        let watch = Watch::start(link, Arc::clone(&ears), config.configure).await;
        let watch = Arc::new(watch);
        let end = CancellationToken::new();
        tokio::spawn(end.clone().run_until_cancelled_owned(Arc::clone(&watch).run()));
        Ok(Self { native, alarms, ears, watch, end: end.drop_guard() })
    }

    /// Whether notifications work, as far as is known: found out after the connection was made, after
    /// each time that it was lost, and by [`check`](Backend::check).
    #[must_use]
    pub fn notifications(&self) -> Notifications {
        self.watch.known()
    }
}

// `missing_trait_methods`: a method that is not forwarded would lose what the native backend does.
#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for RedisExpiryBackend {
    fn name(&self) -> &'static str {
        "redis-expiry"
    }

    fn capabilities(&self) -> Capabilities {
        self.native.capabilities()
    }

    async fn now(&self) -> Result<Timestamp> {
        self.native.now().await
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let queues: Vec<QueueName> = jobs.iter().map(|job| job.queue.clone()).collect();
        let answers = self.native.schedule(jobs).await?;
        let stored = queues.iter().zip(&answers).filter(|(_, answer)| answer.is_stored());
        self.alarms.set(stored.map(|(queue, answer)| (queue, answer.due()))).await;
        Ok(answers)
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.native.cancel(jobs).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        let answers = self.native.reschedule(moves).await?;
        let moved = moves.iter().zip(&answers).filter_map(|(wish, answer)| match answer {
            Rescheduled::Moved(receipt) => Some((&wish.job.queue, receipt.due)),
            _ => None,
        });
        self.alarms.set(moved).await;
        Ok(answers)
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        let wakeups = self.native.listen(queues).await?;
        self.watch.nodes.hear().await;
        Ok(wakeups)
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let asked = self.alarms.elapsed();
        let claimed = self.native.claim(params).await?;
        self.alarms.learn(asked, claimed.now);
        self.ears.saw(&params, &claimed);
        Ok(claimed)
    }

    fn claim_ahead(&self) -> Duration {
        self.native.claim_ahead()
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let answers = self.native.settle(settlements).await?;
        let again = settlements.iter().zip(&answers).filter_map(|(settlement, answer)| {
            match (&settlement.verdict, answer) {
                (Verdict::Retry(due) | Verdict::Snooze(due), Settled::Accepted) => {
                    Some((&settlement.lease.queue, self.alarms.resolve(*due)))
                }
                _ => None,
            }
        });
        self.alarms.set(again).await;
        Ok(answers)
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.native.renew(renewals).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.native.stats(queues).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.native.browse(params).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.native.get(job).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let report = self.native.operate(operation).await?;
        if let Operation::Replay { queue, due, .. } = operation
            && report.affected > 0
        {
            self.alarms.set([(queue, self.alarms.resolve(due))]).await;
        }
        Ok(report)
    }

    async fn check(&self) -> Vec<Finding> {
        let mut findings = self.native.check().await;
        self.watch.nodes.hear().await;
        findings.extend(self.watch.look().await.finding());
        findings
    }

    async fn close(&self) -> Result<()> {
        self.end.token().cancel();
        self.watch.nodes.close();
        self.native.close().await
    }
}
