//! The native backend: checks that it is open, and passes each call to its [`Store`].

use std::sync::Arc;

use async_trait::async_trait;
use dq_core::config::{BackendConfig, Environment};
use dq_core::{
    Announced, Announcement, Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed,
    Finding, HistoryLimit, JobRef, JobView, NewJob, OperateReport, Operation, Page, QueueName,
    QueueStats, Renewal, Renewed, Reschedule, Rescheduled, Result, Scheduled, Settled, Settlement,
    Timestamp, Wakeups,
};

use crate::check;
use crate::claim::ClaimBatch;
use crate::config::RedisConfig;
use crate::connect::{Link, Server, ServerSettings};
use crate::error::closed;
use crate::key_layout::{KeyLayout, NativeLayout};
use crate::keys;
use crate::script::{LIBRARY, Scripts};
use crate::shards::ShardSettings;
use crate::store::Store;
use crate::wakeups::WakeupRouter;

const UNDECODABLE: &str = "its record cannot be decoded by this version";

/// A backend that keeps delayed jobs in Redis.
#[derive(Debug)]
pub struct RedisBackend {
    pub(crate) store: Store,
    pub(crate) wakeups: Arc<WakeupRouter>,
}

impl RedisBackend {
    /// Connects, and checks the server and its user's rights.
    ///
    /// # Errors
    /// `Config` for invalid settings, wrong credentials or missing rights; `Unavailable` if the
    /// server cannot be reached; `ReadOnly` for a replica; `Incompatible` for a server that is too
    /// old or runs no scripts.
    pub async fn connect(config: &RedisConfig, environment: &Environment) -> Result<Self> {
        config.validate()?;
        let layout = Box::new(NativeLayout { prefix: config.prefix.clone() });
        let scripts = Scripts::new(&LIBRARY);
        let shards = ShardSettings::new(&config.shards);
        let server = config.server();
        let backend = Self::assemble(&server, environment, layout, scripts, shards).await?;
        backend.store.prove_rights().await?;
        backend.store.check_format().await?;
        Ok(backend)
    }

    /// Connects with this key layout and checks the server, but not the rights.
    pub(crate) async fn assemble(
        server: &ServerSettings,
        environment: &Environment,
        layout: Box<dyn KeyLayout>,
        scripts: Scripts,
        shards: ShardSettings,
    ) -> Result<Self> {
        let server = Arc::new(Server::new(server)?);
        let link = Arc::new(Link::new(Arc::clone(&server), Arc::clone(&environment.clock)));
        check::probe(&link, keys::slot(layout.queues().as_bytes())).await?;
        let entropy = Arc::clone(&environment.entropy);
        // With a history a settlement costs the server about 1.6 times as much.
        let history = environment.history.clone().or_default(HistoryLimit::OFF);
        let store = Store::new(link, layout, scripts, shards, entropy, history);
        Ok(Self { store, wakeups: Arc::new(WakeupRouter::start(server)) })
    }

    fn ensure_open(&self, operation: &'static str) -> Result<()> {
        if self.store.link.is_closed() {
            return Err(closed(operation));
        }
        Ok(())
    }
}

#[async_trait]
impl Backend for RedisBackend {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        // Jobs with equal due times are claimed by id, which is scheduling order only for one
        // producer's jobs.
        capabilities.fifo = false;
        capabilities
    }

    async fn now(&self) -> Result<Timestamp> {
        self.store.now("now").await
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.ensure_open("schedule")?;
        self.store.schedule(&jobs).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.ensure_open("cancel")?;
        self.store.cancel(jobs).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.ensure_open("reschedule")?;
        self.store.reschedule(moves).await
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        self.ensure_open("listen")?;
        // All partitions of a queue publish on one channel.
        let partition = |queue| self.store.partitions.unsharded(queue);
        let partitions: Vec<_> = queues.iter().map(partition).collect();
        Ok(self.wakeups.listen(&partitions).await)
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.ensure_open("claim")?;
        let ClaimBatch { mut claimed, undecodable, .. } = self.store.claim(&params).await?;
        for job in undecodable {
            self.store.quarantine(job, UNDECODABLE, &mut claimed).await;
        }
        Ok(claimed)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.ensure_open("settle")?;
        self.store.settle(settlements).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.ensure_open("renew")?;
        self.store.renew(renewals).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.store.stats(queues).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.store.browse(&params).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.store.get(job).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.store.operate(operation).await
    }

    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        self.store.forecast(queue, edges).await
    }

    async fn announce(&self, announcement: Announcement) -> Result<()> {
        self.ensure_open("announce")?;
        self.store.announce(&announcement).await
    }

    async fn runners(&self) -> Result<Vec<Announced>> {
        self.store.runners().await
    }

    async fn check(&self) -> Vec<Finding> {
        check::findings(&self.store).await
    }

    async fn close(&self) -> Result<()> {
        self.wakeups.close();
        self.store.link.close().await;
        Ok(())
    }
}

#[async_trait]
impl BackendConfig for RedisConfig {
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(RedisBackend::connect(self, environment).await?))
    }
}

dq_core::register_backend! {
    name: "redis",
    settings: RedisConfig,
    schemes: ["redis", "rediss", "redis+unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel"],
    from_url: |url| Ok(Box::new(RedisConfig::from_url(url)?)),
}
