//! The native backend: connects, and passes each call on to the call's file, like `settle.rs`.

use std::sync::Arc;

use dq_core::config::{BackendConfig, Environment};
use dq_core::{
    Announced, Announcement, Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed,
    Error, Finding, JobRef, JobView, NewJob, OperateReport, Operation, Page, QueueName, QueueStats,
    Renewal, Renewed, Reschedule, Rescheduled, Result, Scheduled, Settled, Settlement, Timestamp,
    Wakeups, async_trait,
};

use crate::check;
use crate::claim::ClaimBatch;
use crate::config::RedisConfig;
use crate::connect::Server;
use crate::key_layout::NativeLayout;
use crate::script::Scripts;
use crate::shards::ShardSettings;
use crate::store::RedisBackend;

const UNDECODABLE: &str = "its record cannot be decoded by this version";

impl RedisBackend {
    /// Connects, and checks the server and its user's rights.
    ///
    /// # Errors
    /// `Config` for invalid settings, wrong credentials or missing rights; `Unavailable` if the
    /// server cannot be reached; `ReadOnly` for a replica; `Incompatible` for a server that is too
    /// old or runs no scripts.
    pub async fn connect(config: &RedisConfig, environment: &Environment) -> Result<Self> {
        config.validate()?;
        let is_cluster = Server::new(&config.server())?.is_cluster();
        let layout = Box::new(NativeLayout { prefix: config.prefix.clone(), is_cluster });
        let scripts = Scripts::native();
        let shards = ShardSettings::new(&config.shards);
        let connecting = async {
            let server = config.server();
            let backend = Self::open(&server, environment, layout, scripts, shards).await?;
            backend.check_format().await?;
            Ok(backend)
        };
        connecting.await.map_err(|error: Error| error.operation("connect"))
    }
}

#[async_trait]
impl Backend for RedisBackend {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::all();
        // Jobs with equal due times are claimed by id: scheduling order only for one producer's
        // jobs.
        capabilities.fifo = false;
        capabilities
    }

    async fn now(&self) -> Result<Timestamp> {
        self.call("now", self.server_time()).await
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        self.call("schedule", self.store_jobs(&jobs)).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.call("cancel", self.run_batch(jobs)).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.call("reschedule", self.run_batch(moves)).await
    }

    async fn listen(&self, queues: &[QueueName], worker: &str) -> Result<Wakeups> {
        // All partitions of a queue publish on one channel.
        let partitions: Vec<_> =
            queues.iter().map(|queue| self.partitions.unsharded(queue)).collect();
        self.call("listen", async { Ok(self.wakeups.listen(&partitions, worker).await) }).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let claim = self.claim_batch(&params);
        let ClaimBatch { mut claimed, undecodable, .. } = self.call("claim", claim).await?;
        for job in undecodable {
            self.quarantine(job, UNDECODABLE, &mut claimed).await;
        }
        Ok(claimed)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.call("settle", self.settle_leases(settlements)).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.call("renew", self.renew_leases(renewals)).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        self.call("stats", self.count_jobs(queues)).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.call("browse", self.list_jobs(&params)).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        self.call("get", self.find_job(job)).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.call("operate", self.run_operation(operation)).await
    }

    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        self.call("forecast", self.count_due(queue, edges)).await
    }

    async fn announce(&self, announcement: Announcement) -> Result<()> {
        self.call("announce", self.announce_runner(&announcement)).await
    }

    async fn runners(&self) -> Result<Vec<Announced>> {
        self.call("runners", self.list_runners()).await
    }

    async fn check(&self) -> Vec<Finding> {
        check::findings(self).await
    }

    async fn close(&self) -> Result<()> {
        self.wakeups.close();
        self.link.close().await;
        Ok(())
    }
}

#[typetag::deserialize(name = "redis")]
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
