//! The native backend: the state that all calls share, and one method per call, which adds the
//! operation to errors. `schedule.rs`, `claim.rs`, `settle.rs`, … have the calls.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::config::{BackendConfig, Environment};
use dq_core::sync::lock;
use dq_core::{
    Announced, Announcement, Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed,
    Entropy, Error, Finding, HistoryLimit, HistoryLimits, JobRef, JobView, NewJob, OperateReport,
    Operation, Page, QueueName, QueueStats, Renewal, Renewed, Reschedule, Rescheduled, Result,
    Scheduled, Settled, Settlement, Timestamp, Wakeups, async_trait,
};
use redis::Value;

use crate::args::history_args;
use crate::check;
use crate::claim::ClaimBatch;
use crate::clock::ServerClock;
use crate::config::RedisConfig;
use crate::connect::{Link, Server, ServerSettings};
use crate::error::{Effect, closed, unexpected};
use crate::key_layout::{KeyLayout, NativeLayout};
use crate::keys::{self, Partition};
use crate::reply::{self, Reply};
use crate::script::{LIBRARY, Scripts};
use crate::shards::ShardSettings;
use crate::shards::leases::LeaseShards;
use crate::shards::partitions::Partitions;
use crate::wakeups::WakeupRouter;

const UNDECODABLE: &str = "its record cannot be decoded by this version";

/// A backend that keeps delayed jobs in Redis.
#[derive(Debug)]
pub struct RedisBackend {
    pub(crate) link: Arc<Link>,
    pub(crate) wakeups: Arc<WakeupRouter>,
    pub(crate) partitions: Partitions,
    pub(crate) scripts: Scripts,
    pub(crate) clock: ServerClock,
    pub(crate) entropy: Arc<Entropy>,
    pub(crate) shard_settings: ShardSettings,
    pub(crate) history: HistoryLimits,
    /// Sharded queues: `None` if they may have pinned ids, else when that was looked up. See
    /// `pins.rs`.
    pub(crate) marked_queues: Mutex<HashMap<QueueName, Option<Duration>>>,
    pub(crate) leases: LeaseShards,
    /// When and on which connection a claim last looked at all queues; see `queue_index.rs`.
    pub(crate) last_full_look: Mutex<Option<(u64, Duration)>>,
    /// Held while a queue's shard count is looked up or changed.
    pub(crate) resolving: tokio::sync::Mutex<()>,
    registered: Mutex<Registered>,
    /// Queues refused by the last claim, logged once.
    pub(crate) refused: Mutex<HashSet<QueueName>>,
}

#[derive(Debug, Default)]
struct Registered {
    connection: u64,
    queues: HashSet<QueueName>,
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
        let connecting = async {
            let server = config.server();
            let backend = Self::assemble(&server, environment, layout, scripts, shards).await?;
            backend.check_format().await?;
            Ok(backend)
        };
        connecting.await.map_err(|error: Error| error.operation("connect"))
    }

    /// Connects with this key layout, and checks the server and the user's rights.
    pub(crate) async fn assemble(
        server: &ServerSettings,
        environment: &Environment,
        layout: Box<dyn KeyLayout>,
        scripts: Scripts,
        shard_settings: ShardSettings,
    ) -> Result<Self> {
        let server = Arc::new(Server::new(server)?);
        let link = Arc::new(Link::new(Arc::clone(&server), Arc::clone(&environment.clock)));
        check::probe(&link, keys::slot(layout.queues().as_bytes())).await?;
        let backend = Self {
            wakeups: Arc::new(WakeupRouter::start(server)),
            clock: ServerClock::new(Arc::clone(link.clock())),
            entropy: Arc::clone(&environment.entropy),
            link,
            partitions: Partitions::new(layout),
            scripts,
            shard_settings,
            // With a history a settlement costs the server about 1.6 times as much.
            history: environment.history.clone().or_default(HistoryLimit::OFF),
            marked_queues: Mutex::default(),
            leases: LeaseShards::default(),
            last_full_look: Mutex::default(),
            resolving: tokio::sync::Mutex::default(),
            registered: Mutex::default(),
            refused: Mutex::default(),
        };
        backend.prove_rights().await?;
        Ok(backend)
    }

    /// Refuses a call after `close`, and adds the operation to an error.
    async fn call<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let result = if self.link.is_closed() { Err(closed()) } else { call.await };
        result.map_err(|error| error.operation(operation))
    }

    pub(crate) fn layout(&self) -> &dyn KeyLayout {
        &*self.partitions.layout
    }

    pub(crate) fn history_args(&self, partition: &Partition) -> (u32, u64) {
        history_args(self.history.of(&partition.queue), partition)
    }

    pub(crate) async fn server_time(&self) -> Result<Timestamp> {
        let slot = keys::slot(self.layout().queues().as_bytes());
        let sent_at = self.clock.elapsed();
        let answer = self.link.query(Some(slot), &redis::cmd("TIME")).await;
        let mut reply = Reply::new(self.link.result(Effect::Repeatable, answer)?)?;
        let now = Timestamp::from_millis(reply.number()? * 1000 + reply.number()? / 1000);
        self.clock.observe(sent_at, now);
        Ok(now)
    }

    /// Adds queues to the set of all queues, once per connection.
    pub(crate) async fn register<'a>(
        &self,
        queues: impl IntoIterator<Item = &'a QueueName>,
    ) -> Result<()> {
        // A new connection may lead to a server that was replaced or restored.
        let connection = self.link.connections();
        let unknown: HashSet<&QueueName> = {
            let mut registered = lock(&self.registered);
            if registered.connection != connection {
                *registered = Registered { connection, queues: HashSet::new() };
            }
            queues.into_iter().filter(|queue| !registered.queues.contains(*queue)).collect()
        };
        if unknown.is_empty() {
            return Ok(());
        }
        let mut add = redis::cmd("SADD");
        add.arg(self.layout().queues());
        for queue in &unknown {
            add.arg(queue.as_str());
        }
        self.link.run(Effect::Repeatable, &add).await?;
        let mut registered = lock(&self.registered);
        // Another call may have seen a newer connection.
        if registered.connection == connection {
            registered.queues.extend(unknown.into_iter().cloned());
        }
        Ok(())
    }

    pub(crate) async fn register_again(&self, queue: &QueueName) -> Result<()> {
        lock(&self.registered).queues.remove(queue);
        self.register([queue]).await
    }

    pub(crate) async fn queues(&self) -> Result<Vec<QueueName>> {
        let mut members = redis::cmd("SMEMBERS");
        members.arg(self.layout().queues());
        let Value::Array(members) = self.link.run(Effect::Repeatable, &members).await? else {
            return Err(unexpected());
        };
        let name = |member| {
            let member = reply::bytes(member).ok()?;
            QueueName::new(str::from_utf8(&member).ok()?).ok()
        };
        let mut queues: Vec<QueueName> = members.into_iter().filter_map(name).collect();
        queues.sort();
        Ok(queues)
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

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        // All partitions of a queue publish on one channel.
        let partitions: Vec<_> =
            queues.iter().map(|queue| self.partitions.unsharded(queue)).collect();
        self.call("listen", async { Ok(self.wakeups.listen(&partitions).await) }).await
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
