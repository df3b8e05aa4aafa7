//! The `redisson` backend: a layer with scripts for Redisson's keys and the Java clients' codec.

use std::sync::Arc;

use bytes::Bytes;
use dq_core::config::{BackendConfig, Environment};
use dq_core::{
    Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed, Error, Finding, Job,
    JobRef, JobView, Layer, LeasedJob, NewJob, Page, QueueName, QueueStats, Reschedule,
    Rescheduled, Result, Scheduled, Settled, Settlement, Target, Verdict, Wakeups, async_trait,
};
use tokio_util::sync::DropGuard;

use super::check;
use super::codec::Codec;
use super::config::RedissonConfig;
use super::destination_watch::DestinationWatch;
use super::layout::RedissonLayout;
use super::member;
use super::scripts::{JavaScripts, scripts};
use super::transfer;
use crate::error::Effect;
use crate::handle;
use crate::reply;
use crate::rights::unless_read_only;
use crate::settle::UndecodableJob;
use crate::shards::ShardSettings;
use crate::store::RedisBackend;

/// About how many members one call of `locate` reads.
const LOCATE_BATCH: usize = 500;

/// A backend that shares Redisson's `RDelayedQueue` with Java clients.
///
/// `stats` counts payloads in the destination list, from which Java's `take()` pops, as ready.
/// `browse` does not list them because they have neither an id nor a due time.
#[derive(Debug)]
pub struct RedissonBackend {
    native: RedisBackend,
    config: RedissonConfig,
    scripts: Arc<JavaScripts>,
    destination_watch: DestinationWatch,
    transfer: Option<DropGuard>,
}

impl RedissonBackend {
    /// Connects and checks the server, its version and the user's rights.
    ///
    /// # Errors
    /// As [`RedisBackend::connect`]; also `InvalidInput` if a queue of
    /// [`consumed_by_java`](RedissonConfig::consumed_by_java) cannot exist in the cluster.
    pub async fn connect(config: &RedissonConfig, environment: &Environment) -> Result<Self> {
        config.validate()?;
        Self::open(config, environment).await.map_err(|error| error.operation("connect"))
    }

    async fn open(config: &RedissonConfig, environment: &Environment) -> Result<Self> {
        let layout = Box::new(RedissonLayout {
            prefix: config.prefix.clone(),
            name_prefix: config.name_prefix.clone(),
            format: config.format,
        });
        let (all_layouts, own) = scripts(&config.script_settings());
        let (server, shards) = (config.server(), ShardSettings::default());
        let native = RedisBackend::open(&server, environment, layout, all_layouts, shards).await?;
        prove_blmove(&native, &config.prefix).await?;
        native.check_format().await?;
        let listeners = Arc::clone(native.wakeups.listeners());
        let mut backend = Self {
            destination_watch: DestinationWatch::new(Arc::clone(native.link.server()), listeners),
            native,
            config: config.clone(),
            scripts: own,
            transfer: None,
        };
        for queue in &config.consumed_by_java {
            backend.check_slot(queue)?;
        }
        if !config.consumed_by_java.is_empty() {
            let (scripts, queues) = (Arc::clone(&backend.scripts), &config.consumed_by_java);
            let task = transfer::start(&backend.native, scripts, queues, environment);
            backend.transfer = Some(task);
        }
        Ok(backend)
    }

    /// `InvalidInput` if the queue's keys lie in different slots of a cluster.
    fn check_slot(&self, queue: &QueueName) -> Result<()> {
        if self.native.link.server().is_cluster()
            && !self.native.partitions.unsharded(queue).is_in_one_slot()
        {
            return Err(Error::invalid(format!(
                "the keys of the Redisson queue {queue} lie in different slots of the cluster"
            ))
            .remedy("use a name without braces, or with a hash tag such as a{b}c"));
        }
        Ok(())
    }

    fn codec(&self, queue: &QueueName) -> &Codec {
        self.config.codecs.get(queue).unwrap_or(&self.config.codec)
    }

    fn encode(&self, job: &NewJob) -> Result<NewJob> {
        self.check_slot(&job.queue)?;
        let payload = self.codec(&job.queue).encode(&job.payload)?;
        Ok(job.clone().payload(payload))
    }

    fn decode(&self, job: &mut Job) -> Result<()> {
        job.payload = self.codec(&job.queue).decode(&job.payload)?;
        Ok(())
    }

    /// Leaves a payload as it is if it cannot be decoded.
    fn decode_view(&self, mut view: JobView) -> JobView {
        self.decode(&mut view.job).ok();
        view
    }

    /// Searches a queue for a job from Java and adds it to the scripts' index of waiting jobs.
    /// Returns `false` if no such job waits. Java's jobs have no key, and their ids end in
    /// `redisson`. Jobs from this backend are always in the index.
    async fn locate(&self, job: &JobRef, operation: &'static str) -> Result<bool> {
        let Target::Id(id) = job.target else { return Ok(false) };
        if member::java_id(id).is_none() {
            return Ok(false);
        }
        let partition = self.native.partitions.unsharded(&job.queue);
        let mut cursor = Bytes::from_static(b"0");
        loop {
            let mut call = self.scripts.locate.on([&*partition]);
            call.arg(&handle::handle_and_tail(id)[..]).arg(&cursor[..]).arg(LOCATE_BATCH);
            let answer = call.run(&self.native.link).await.and_then(reply::bytes);
            cursor = answer.map_err(|error| error.operation(operation))?;
            if cursor.is_empty() || cursor == "0" {
                return Ok(cursor.is_empty());
            }
        }
    }
}

/// Tries BLMOVE, which watches Java's lists. Not in a script: not every version allows it there.
async fn prove_blmove(native: &RedisBackend, prefix: &str) -> Result<()> {
    let list = format!("{prefix}:rights:list:{{dq-rights}}");
    // 10 ms: Redis 6.2 rounds 1 ms to 0, which means no time limit.
    let mut blmove = redis::cmd("BLMOVE");
    blmove.arg(&[&list, &list, "LEFT", "LEFT", "0.01"]);
    unless_read_only(native.link.run(Effect::Repeatable, &blmove).await)
}

#[async_trait]
impl Layer for RedissonBackend {
    fn inner(&self) -> &dyn Backend {
        &self.native
    }

    fn name(&self) -> &'static str {
        "redisson"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.native.capabilities();
        // Totals miss the jobs that Java adds and takes, and limits would miss those that it runs.
        capabilities.totals = false;
        capabilities.flow = false;
        capabilities.groups = false;
        capabilities
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let jobs = jobs.iter().map(|job| self.encode(job)).collect::<Result<_>>();
        self.native.schedule(jobs.map_err(|error| error.operation("schedule"))?).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        let mut answers = self.native.cancel(jobs).await?;
        for (job, answer) in jobs.iter().zip(&mut answers) {
            if *answer == Cancelled::NotFound && self.locate(job, "cancel").await? {
                *answer = self.native.cancel(std::slice::from_ref(job)).await?[0];
            }
        }
        Ok(answers)
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        let mut answers = self.native.reschedule(moves).await?;
        for (item, answer) in moves.iter().zip(&mut answers) {
            if *answer == Rescheduled::NotFound && self.locate(&item.job, "reschedule").await? {
                *answer = self.native.reschedule(std::slice::from_ref(item)).await?[0];
            }
        }
        Ok(answers)
    }

    async fn listen(&self, queues: &[QueueName], worker: &str) -> Result<Wakeups> {
        let wakeups = self.native.listen(queues, worker).await?;
        // `stats` and `check` then cover queues that only Java fills. An error is harmless: the
        // next `listen` registers the queues.
        self.native.register(queues).await.ok();
        for queue in queues {
            self.destination_watch.watch(self.native.partitions.unsharded(queue));
        }
        Ok(wakeups)
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        for want in params.wants {
            self.check_slot(&want.queue).map_err(|error| error.operation("claim"))?;
        }
        let mut claimed = self.native.claim(params).await?;
        for mut leased in std::mem::take(&mut claimed.jobs) {
            match self.decode(&mut leased.job) {
                Ok(()) => claimed.jobs.push(leased),
                // The dead job keeps its bytes.
                Err(error) => {
                    let LeasedJob { job, token, .. } = leased;
                    let undecodable = UndecodableJob { job, shard: 0, token: token.0 };
                    let message = error.to_string();
                    self.native.quarantine(undecodable, &message, &mut claimed).await;
                }
            }
        }
        Ok(claimed)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let encoded = settlements.iter().map(|settlement| {
            let mut settlement = settlement.clone();
            if let Verdict::Again { payload, .. } = &mut settlement.verdict {
                *payload = self.codec(&settlement.lease.queue).encode(payload)?;
            }
            Ok(settlement)
        });
        self.native.settle(&encoded.collect::<Result<Vec<_>>>()?).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let mut stats = self.native.stats(queues).await?;
        for queue in &mut stats {
            queue.totals = None;
        }
        Ok(stats)
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        let page = self.native.browse(params).await?;
        let jobs = page.jobs.into_iter().map(|view| self.decode_view(view)).collect();
        Ok(Page::new(jobs, page.next))
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        let mut view = self.native.get(job).await?;
        if view.is_none() && self.locate(job, "get").await? {
            view = self.native.get(job).await?;
        }
        Ok(view.map(|view| self.decode_view(view)))
    }

    async fn check(&self) -> Vec<Finding> {
        let mut findings = self.native.check().await;
        findings.extend(check::findings(&self.native, self.config.java_visibility).await);
        findings
    }

    async fn close(&self) -> Result<()> {
        self.destination_watch.close();
        if let Some(transfer) = &self.transfer {
            transfer.token().cancel();
        }
        self.native.close().await
    }
}

#[typetag::deserialize(name = "redisson")]
#[async_trait]
impl BackendConfig for RedissonConfig {
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(RedissonBackend::connect(self, environment).await?))
    }
}

dq_core::register_backend! {
    name: "redisson",
    settings: RedissonConfig,
    schemes: ["redisson", "redisson+unix", "redisson+cluster", "redisson+sentinel"],
    from_url: |url| Ok(Box::new(RedissonConfig::from_url(url)?)),
}
