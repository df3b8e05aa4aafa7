//! The backend: each call goes to the store.

use std::sync::Arc;

use async_trait::async_trait;
use dq_core::config::Environment;
use dq_core::{
    Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed, Finding, JobRef, JobView,
    NewJob, OperateReport, Operation, Page, QueueName, QueueStats, Renewal, Renewed, Reschedule,
    Rescheduled, Result, Scheduled, Settled, Settlement, Timestamp, Wakeups,
};

use crate::check;
use crate::config::RedisConfig;
use crate::connect::{Link, Server, ServerSettings};
use crate::error::closed;
use crate::keys::Naming;
use crate::script::Scripts;
use crate::shards::Shards;
use crate::shards::lanes::Lanes;
use crate::store::Store;
use crate::wake::Switchboard;

/// Why a job cannot be handed out.
const UNREADABLE: &str = "its record is not one that this version can read";

/// Delayed jobs in Redis, in a layout of our own.
#[derive(Debug)]
pub struct RedisBackend {
    pub(crate) store: Store,
    pub(crate) switchboard: Arc<Switchboard>,
}

impl RedisBackend {
    /// Connects, and checks that the server will do.
    ///
    /// # Errors
    /// `Config` for settings, credentials or rights that will not do; `Unavailable`; `ReadOnly` for
    /// a replica; `Incompatible` for a server that is too old or has no scripting.
    pub async fn connect(config: &RedisConfig, environment: &Environment) -> Result<Self> {
        config.validate()?;
        let naming = Naming::Native { prefix: config.prefix.clone() };
        let mut backend =
            Self::assemble(&config.server(), environment, naming, Scripts::native()).await?;
        backend.store.shards = Shards::new(&config.shards);
        backend.store.prove_rights().await?;
        Ok(backend)
    }

    /// The same calls on keys and scripts of another layout.
    pub(crate) async fn assemble(
        server: &ServerSettings,
        environment: &Environment,
        naming: Naming,
        scripts: Scripts,
    ) -> Result<Self> {
        let server = Arc::new(Server::new(server)?);
        let link = Arc::new(Link::new(Arc::clone(&server), Arc::clone(&environment.clock)));
        check::probe(&link).await?;
        let store = Store::new(link, Lanes::new(naming), scripts, Shards::default());
        Ok(Self { store, switchboard: Arc::new(Switchboard::start(server)) })
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
        // Equal times fire in order of ids, which is that of making for one producer only.
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
        let lanes: Vec<_> = queues.iter().map(|queue| self.store.lanes.of(queue)).collect();
        Ok(self.switchboard.listen(&lanes).await)
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        self.ensure_open("claim")?;
        let brought = self.store.claim(&params).await?;
        self.store.park(&brought.unreadable, UNREADABLE).await;
        Ok(brought.claimed)
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
        Ok(OperateReport { affected: self.store.operate(operation).await? })
    }

    async fn check(&self) -> Vec<Finding> {
        let mut findings = check::findings(&self.store).await;
        match self.store.inspect().await {
            Ok(more) => findings.extend(more),
            Err(error) if findings.is_empty() => findings.push(check::unreachable(&error)),
            Err(_) => {}
        }
        findings
    }

    async fn close(&self) -> Result<()> {
        self.switchboard.close();
        self.store.link.close().await;
        Ok(())
    }
}
