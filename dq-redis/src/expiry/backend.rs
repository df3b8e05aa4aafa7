//! The `redis-expiry` backend: sets an expiry key for each due time that the native backend stores.

use std::collections::BTreeSet;
use std::sync::Arc;

use dq_core::config::{BackendConfig, Environment};
use dq_core::{
    Backend, Clock, Finding, Layer, NewJob, OperateReport, Operation, QueueName, Reschedule,
    Rescheduled, Result, Scheduled, Settled, Settlement, Timestamp, Verdict, Wakeups, async_trait,
};
use futures_util::future::try_join_all;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::check;
use super::config::RedisExpiryConfig;
use super::configure::configure;
use super::expiry_keys::KeyNames;
use super::listener::ExpiryEvents;
use super::probe::ExpiryProbe;
use super::subscriptions::Subscriptions;
use crate::connect::Link;
use crate::error::Effect;
use crate::store::RedisBackend;

const MAX_IN_FLIGHT: usize = 128;

/// A [`RedisBackend`] with additional hints from expiring keys.
#[derive(Debug)]
pub struct RedisExpiryBackend {
    native: RedisBackend,
    names: KeyNames,
    clock: Arc<dyn Clock>,
    events: Arc<ExpiryEvents>,
    subscriptions: Arc<Subscriptions>,
    configure: bool,
    end: DropGuard,
}

impl RedisExpiryBackend {
    /// Connects and checks the server. [`check`](Backend::check) says whether notifications of
    /// expired keys arrive.
    ///
    /// # Errors
    /// As [`RedisBackend::connect`].
    pub async fn connect(config: &RedisExpiryConfig, environment: &Environment) -> Result<Self> {
        let native = RedisBackend::connect(&config.native(), environment).await?;
        let names = KeyNames::new(&config.prefix);
        let proved = native.prove_expiry_rights(names.test_key()).await;
        proved.map_err(|error| error.operation("connect"))?;
        let link = Arc::clone(&native.link);
        let entropy = Arc::clone(&environment.entropy);
        let probe = ExpiryProbe::new(&config.prefix, Arc::clone(&link), entropy);
        let listeners = Arc::clone(native.wakeups.listeners());
        let events = Arc::new(ExpiryEvents::new(listeners, names.clone(), probe));
        let subscriptions = Subscriptions::start(Arc::clone(&link), Arc::clone(&events)).await;
        let subscriptions = Arc::new(subscriptions);
        let end = CancellationToken::new();
        let task = follow(link, Arc::clone(&events), Arc::clone(&subscriptions), config.configure);
        tokio::spawn(end.clone().run_until_cancelled_owned(task));
        Ok(Self {
            native,
            names,
            clock: Arc::clone(&environment.clock),
            events,
            subscriptions,
            configure: config.configure,
            end: end.drop_guard(),
        })
    }

    /// Sets a key for each due time in the future, by this machine's clock. Only logs a failure:
    /// the jobs are stored, and timers start them.
    async fn set_keys(&self, dues: impl IntoIterator<Item = (&QueueName, Timestamp)>) {
        let now = self.clock.now();
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
}

/// Keeps the subscriptions up. With `should_configure`, turns notifications on after each connect,
/// because a restarted server or a new cluster node has its own settings. Never returns.
async fn follow(
    link: Arc<Link>,
    events: Arc<ExpiryEvents>,
    subscriptions: Arc<Subscriptions>,
    should_configure: bool,
) {
    let configure_on_connect = async {
        loop {
            events.connected.notified().await;
            if should_configure && let Err(message) = configure(&link).await {
                tracing::warn!("Redis: notifications of expired keys are not on: {message}");
            }
        }
    };
    tokio::join!(subscriptions.follow_primaries(), configure_on_connect);
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

    async fn listen(&self, queues: &[QueueName], worker: &str) -> Result<Wakeups> {
        let wakeups = self.native.listen(queues, worker).await?;
        self.subscriptions.connect().await;
        Ok(wakeups)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let answers = self.native.settle(settlements).await?;
        let accepted =
            settlements.iter().zip(&answers).filter(|(_, answer)| **answer == Settled::Accepted);
        let due_again = accepted.filter_map(|(settlement, _)| match &settlement.verdict {
            Verdict::Retry { due, .. }
            | Verdict::Again { due, .. }
            | Verdict::Snooze(due)
            | Verdict::Throttle(due) => {
                Some((&settlement.lease.queue, due.resolve(self.clock.now())))
            }
            _ => None,
        });
        self.set_keys(due_again).await;
        Ok(answers)
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let report = self.native.operate(operation).await?;
        if let Operation::Replay { queue, due, .. } = operation
            && report.affected > 0
        {
            self.set_keys([(queue, due.resolve(self.clock.now()))]).await;
        }
        Ok(report)
    }

    async fn check(&self) -> Vec<Finding> {
        let mut findings = self.native.check().await;
        let (link, probe) = (&self.native.link, &self.events.probe);
        findings.extend(check::finding(link, &self.subscriptions, probe, self.configure).await);
        findings
    }

    async fn close(&self) -> Result<()> {
        self.end.token().cancel();
        self.subscriptions.close();
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
