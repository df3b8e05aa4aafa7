//! The backend: the calls of the native one on Redisson's keys, with payloads in Java's codec.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dq_core::config::Environment;
use dq_core::{
    Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed, Error, Finding, Job,
    JobId, JobRef, JobView, LeasedJob, NewJob, OperateReport, Operation, Page, QueueName,
    QueueStats, Renewal, Renewed, Reschedule, Rescheduled, Result, Scheduled, Settled, Settlement,
    Target, Timestamp, Wakeups,
};

use super::Codec;
use super::check;
use super::config::RedissonConfig;
use super::member;
use super::peek::Peeks;
use super::relay::Relay;
use crate::args::JobEncoding;
use crate::backend::{KeyLayout, RedisBackend};
use crate::connect::Link;
use crate::handle;
use crate::keys::Naming;
use crate::reply;
use crate::script::{JavaScripts, Scripts};
use crate::settle::UndecodableJob;
use crate::shards::ShardSettings;

/// Members that one look of [`RedissonBackend::locate`] covers.
const LOOK: usize = 500;

/// Delayed jobs in the delayed queues of Redisson, side by side with Java clients.
///
/// `stats` counts what lies in Java's target list as ready; `browse` cannot list it, as it has
/// neither id nor due time.
#[derive(Debug)]
pub struct RedissonBackend {
    pub(super) native: RedisBackend,
    config: RedissonConfig,
    pub(super) scripts: Arc<JavaScripts>,
    peeks: Peeks,
    relay: Option<Relay>,
}

impl RedissonBackend {
    /// Connects, and checks that the server will do.
    ///
    /// # Errors
    /// As [`RedisBackend::connect`].
    pub async fn connect(config: &RedissonConfig, environment: &Environment) -> Result<Self> {
        config.validate()?;
        let naming = Naming::Redisson {
            prefix: config.prefix.clone(),
            name_prefix: config.name_prefix.clone(),
        };
        let settings = config.settings();
        let layout = KeyLayout {
            naming,
            scripts: Scripts::redisson(&settings),
            encoding: JobEncoding::Member(config.format),
        };
        let shards = ShardSettings::default();
        let native = RedisBackend::assemble(&config.server(), environment, layout, shards).await?;
        native.store.prove_rights().await?;
        if config.peeks > 0 {
            native.store.prove_blmove().await?;
        }
        let scripts = Arc::new(JavaScripts::new(&settings));
        for queue in &config.relay {
            whole(&native, queue, "connect")?;
        }
        let relay = (!config.relay.is_empty())
            .then(|| Relay::start(&native, Arc::clone(&scripts), &config.relay, environment));
        let peeks = Peeks::new(Arc::clone(native.store.link.server()), config.peeks);
        Ok(Self { native, config: config.clone(), scripts, peeks, relay })
    }

    pub(super) fn link(&self) -> &Link {
        &self.native.store.link
    }

    fn codec(&self, queue: &QueueName) -> &Codec {
        self.config.codecs.get(queue).unwrap_or(&self.config.codec)
    }

    /// A job as Java is to read it, under an id that the format has room for.
    fn encode(&self, job: &NewJob) -> Result<NewJob> {
        whole(&self.native, &job.queue, "schedule")?;
        let payload = self.codec(&job.queue).encode(&job.payload)?;
        Ok(NewJob { payload, ..job.clone() })
    }

    /// A job as handlers are to read it.
    fn decode(&self, job: &mut Job) -> Result<()> {
        job.payload = self.codec(&job.queue).decode(&job.payload)?;
        Ok(())
    }

    /// A job as operators look at it: one that cannot be read is shown as it is.
    fn show(&self, mut view: JobView) -> JobView {
        self.decode(&mut view.job).ok();
        view
    }

    /// Whether a job that was not found may be there unnoted.
    fn may_be_unnoted(&self, target: &Target) -> Option<JobId> {
        match target {
            Target::Id(id) if !self.config.notes_all() || member::to_java(*id).is_some() => {
                Some(*id)
            }
            _ => None,
        }
    }

    /// Looks through a queue for a job that nobody noted, and notes it. `false` if it is not there.
    async fn locate(&self, job: &JobRef, operation: &'static str) -> Result<bool> {
        let Some(id) = self.may_be_unnoted(&job.target) else {
            return Ok(false);
        };
        let lane = self.native.store.partitions.unsharded(&job.queue);
        let mut cursor = Bytes::from_static(b"0");
        loop {
            let mut call = self.scripts.locate.on([&*lane]);
            call.arg(&handle::full(id)[..]).arg(&cursor[..]).arg(LOOK);
            let answer = call.run(self.link(), operation).await?;
            cursor = reply::bytes(answer).unwrap_or_default();
            if cursor.is_empty() || cursor == "0" {
                return Ok(cursor.is_empty());
            }
        }
    }
}

/// Refuses a queue whose keys a cluster would spread.
fn whole(native: &RedisBackend, queue: &QueueName, operation: &'static str) -> Result<()> {
    if native.store.link.server().is_cluster()
        && !native.store.partitions.unsharded(queue).is_in_one_slot()
    {
        return Err(Error::invalid(format!(
            "the keys of the Redisson queue {queue} lie in different slots of the cluster"
        ))
        .remedy("use a name without braces, or with a hash tag such as a{b}c")
        .operation(operation));
    }
    Ok(())
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Backend for RedissonBackend {
    fn name(&self) -> &'static str {
        "redisson"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.native.capabilities();
        // What Java puts in and takes out is not counted.
        capabilities.totals = false;
        capabilities
    }

    async fn now(&self) -> Result<Timestamp> {
        self.native.now().await
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let jobs = jobs.iter().map(|job| self.encode(job)).collect::<Result<Vec<_>>>()?;
        self.native.schedule(jobs).await
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
        for (wish, answer) in moves.iter().zip(&mut answers) {
            if *answer == Rescheduled::NotFound && self.locate(&wish.job, "reschedule").await? {
                *answer = self.native.reschedule(std::slice::from_ref(wish)).await?[0];
            }
        }
        Ok(answers)
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        let wakeups = self.native.listen(queues).await?;
        // Queues that only Java fills are to be counted and checked too. They will be the next time
        // if the server is away now.
        self.native.store.register("listen", queues).await.ok();
        for queue in queues {
            let lane = self.native.store.partitions.unsharded(queue);
            self.peeks.watch(&lane, self.native.wakeups.listeners());
        }
        Ok(wakeups)
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        for want in params.wants {
            whole(&self.native, &want.queue, "claim")?;
        }
        let mut claimed = if self.config.fair_with_java {
            // Large, and not for everybody.
            Box::pin(self.claim_fairly(params)).await?
        } else {
            self.native.claim(params).await?
        };
        let mut jobs = Vec::with_capacity(claimed.jobs.len());
        for mut leased in std::mem::take(&mut claimed.jobs) {
            match self.decode(&mut leased.job) {
                Ok(()) => jobs.push(leased),
                Err(error) => self.park(&leased, &error).await,
            }
        }
        claimed.jobs = jobs;
        Ok(claimed)
    }

    fn claim_ahead(&self) -> Duration {
        self.native.claim_ahead()
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.native.settle(settlements).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.native.renew(renewals).await
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
        Ok(Page { jobs: page.jobs.into_iter().map(|view| self.show(view)).collect(), ..page })
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        let mut view = self.native.get(job).await?;
        if view.is_none() && self.locate(job, "get").await? {
            view = self.native.get(job).await?;
        }
        Ok(view.map(|view| self.show(view)))
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.native.operate(operation).await
    }

    async fn check(&self) -> Vec<Finding> {
        let mut findings = self.native.check().await;
        findings.extend(check::findings(&self.native.store, self.config.order_list).await);
        findings
    }

    async fn close(&self) -> Result<()> {
        self.peeks.close();
        if let Some(relay) = &self.relay {
            relay.close();
        }
        self.native.close().await
    }
}

impl RedissonBackend {
    /// Parks a job whose payload is not what the codec writes, with its bytes as they came.
    async fn park(&self, leased: &LeasedJob, error: &Error) {
        let job = UndecodableJob {
            queue: leased.job.queue.clone(),
            shard: 0,
            handle: handle::handle(leased.job.id).to_vec(),
            token: leased.token.0,
        };
        self.native.store.bury_undecodable(&[job], &error.to_string()).await;
    }
}
