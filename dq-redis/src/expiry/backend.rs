//! The `redis-expiry` backend: passes each call to the native backend, then sets an expiry key for
//! each stored due time.

use std::collections::BTreeSet;
use std::sync::Arc;

use dq_core::config::{BackendConfig, Environment};
use dq_core::{
    Backend, ClaimParams, Claimed, Finding, Layer, NewJob, OperateReport, Operation, QueueName,
    Reschedule, Rescheduled, Result, Scheduled, Settled, Settlement, Timestamp, Verdict, Wakeups,
    async_trait,
};
use futures_util::future::try_join_all;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::check::Notifications;
use super::config::RedisExpiryConfig;
use super::expiry_keys::KeyNames;
use super::listener::ExpiryEvents;
use super::monitor::NotificationMonitor;
use super::probe::ExpiryProbe;
use crate::error::Effect;
use crate::store::RedisBackend;

const MAX_IN_FLIGHT: usize = 128;

/// A [`RedisBackend`] with additional hints from expiring keys.
#[derive(Debug)]
pub struct RedisExpiryBackend {
    native: RedisBackend,
    names: KeyNames,
    events: Arc<ExpiryEvents>,
    monitor: Arc<NotificationMonitor>,
    /// Ends the task of `monitor` when dropped.
    end: DropGuard,
}

impl RedisExpiryBackend {
    /// Connects and checks the server. Probes notifications in the background: see
    /// [`notifications`](Self::notifications).
    ///
    /// # Errors
    /// As [`RedisBackend::connect`].
    pub async fn connect(config: &RedisExpiryConfig, environment: &Environment) -> Result<Self> {
        let native = RedisBackend::connect(&config.native(), environment).await?;
        let names = KeyNames::new(&config.prefix);
        let ready = async {
            native.prove_expiry_rights(names.test_key()).await?;
            // For the first delays.
            native.server_time().await
        };
        ready.await.map_err(|error| error.operation("connect"))?;
        let link = Arc::clone(&native.link);
        let entropy = Arc::clone(&environment.entropy);
        let probe = ExpiryProbe::new(&config.prefix, Arc::clone(&link), entropy);
        let listeners = Arc::clone(native.wakeups.listeners());
        let events = Arc::new(ExpiryEvents::new(listeners, names.clone(), probe));
        let monitor = NotificationMonitor::start(link, Arc::clone(&events), config.configure).await;
        let monitor = Arc::new(monitor);
        let end = CancellationToken::new();
        tokio::spawn(end.clone().run_until_cancelled_owned(Arc::clone(&monitor).run()));
        Ok(Self { native, names, events, monitor, end: end.drop_guard() })
    }

    /// Sets a key for each due time in the future. Only logs a failure: the jobs are stored, and
    /// timers start them.
    async fn set_keys(&self, dues: impl IntoIterator<Item = (&QueueName, Timestamp)>) {
        let now = self.server_time();
        let dues: BTreeSet<_> = dues.into_iter().filter(|(_, due)| *due > now).collect();
        let command = |(queue, due): (&QueueName, Timestamp)| {
            let mut set = redis::cmd("SET");
            set.arg(self.names.key(queue, due)).arg("").arg("PXAT").arg(due.as_millis());
            set
        };
        let commands: Vec<_> = dues.into_iter().map(command).collect();
        for chunk in commands.chunks(MAX_IN_FLIGHT) {
            let sent = chunk.iter().map(|set| self.native.link.run(Effect::Repeatable, set));
            if let Err(error) = try_join_all(sent).await {
                tracing::debug!(%error, "Redis: expiry keys were not set; jobs are started by timers");
                return;
            }
        }
    }

    fn server_time(&self) -> Timestamp {
        Timestamp::from_millis(self.native.clock.estimate())
    }

    /// Returns the result of the last probe, which runs after each connect and in
    /// [`check`](Backend::check).
    #[must_use]
    pub fn notifications(&self) -> Notifications {
        self.monitor.state()
    }
}

#[async_trait]
impl Layer for RedisExpiryBackend {
    fn inner(&self) -> &dyn Backend {
        &self.native
    }

    fn name(&self) -> &'static str {
        "redis-expiry"
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let queues: Vec<QueueName> = jobs.iter().map(|job| job.queue.clone()).collect();
        let answers = self.native.schedule(jobs).await?;
        let stored = queues.iter().zip(&answers).filter(|(_, answer)| answer.is_stored());
        self.set_keys(stored.map(|(queue, answer)| (queue, answer.due()))).await;
        Ok(answers)
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        let answers = self.native.reschedule(moves).await?;
        let moved = moves.iter().zip(&answers).filter_map(|(item, answer)| match answer {
            Rescheduled::Moved(receipt) => Some((&item.job.queue, receipt.due)),
            _ => None,
        });
        self.set_keys(moved).await;
        Ok(answers)
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        let wakeups = self.native.listen(queues).await?;
        self.monitor.subscriptions.connect().await;
        Ok(wakeups)
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let sent_at = self.native.clock.elapsed();
        let claimed = self.native.claim(params).await?;
        // A process that only runs jobs has no other source of the server's time.
        self.native.clock.observe(sent_at, claimed.now);
        self.events.claimed.record(&params, &claimed);
        Ok(claimed)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let answers = self.native.settle(settlements).await?;
        let due_again =
            settlements.iter().zip(&answers).filter_map(|(settlement, answer)| {
                match (&settlement.verdict, answer) {
                    (
                        Verdict::Retry { due, .. }
                        | Verdict::Again { due, .. }
                        | Verdict::Snooze(due),
                        Settled::Accepted,
                    ) => Some((&settlement.lease.queue, due.resolve(self.server_time()))),
                    _ => None,
                }
            });
        self.set_keys(due_again).await;
        Ok(answers)
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let report = self.native.operate(operation).await?;
        if let Operation::Replay { queue, due, .. } = operation
            && report.affected > 0
        {
            self.set_keys([(queue, due.resolve(self.server_time()))]).await;
        }
        Ok(report)
    }

    async fn check(&self) -> Vec<Finding> {
        let mut findings = self.native.check().await;
        self.monitor.subscriptions.connect().await;
        findings.extend(self.monitor.probe().await.finding());
        findings
    }

    async fn close(&self) -> Result<()> {
        self.end.token().cancel();
        self.monitor.subscriptions.close();
        self.native.close().await
    }
}

#[typetag::deserialize(name = "redis-expiry")]
#[async_trait]
impl BackendConfig for RedisExpiryConfig {
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(RedisExpiryBackend::connect(self, environment).await?))
    }
}

dq_core::register_backend! {
    name: "redis-expiry",
    settings: RedisExpiryConfig,
    schemes: ["redis-expiry", "redis-expiry+unix", "redis-expiry+cluster", "redis-expiry+sentinel"],
    from_url: |url| Ok(Box::new(RedisExpiryConfig::from_url(url)?)),
}
