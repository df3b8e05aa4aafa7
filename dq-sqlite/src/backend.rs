//! The backend: each call becomes a writer task or a read.
//!
//! - Writes run on one thread (`writer.rs`), many in one transaction ([`WriteTx`]).
//! - Reads run on a pool of read-only connections (`reader.rs`), each in its own [`ReadTx`].
//! - A claim does both: a reader plans it (`claim_plan.rs`), and the writer leases the due jobs.
//!
//! A *live* job waits or is leased. `seq` numbers jobs in insertion order and is their primary key.
//! `queue_id` (column `q`) stands for the queue name. Each write transaction first returns the jobs
//! of expired leases to their queues; reads act as if that had happened.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use dq_core::config::{BackendConfig, Environment};
use dq_core::sync::lock;
use dq_core::{
    Announced, Announcement, Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed,
    Finding, JobRef, JobView, Lease, NewJob, OperateReport, Operation, Page, QueueName, QueueStats,
    Renewal, Renewed, Reschedule, Rescheduled, Result, Scheduled, Settled, Settlement,
    SqlStatement, Timestamp, Verdict, Wakeups, Want,
};
use rusqlite::Connection;

use crate::claim::ClaimGuard;
use crate::claim_plan::ClaimPlan;
use crate::config::SqliteConfig;
use crate::connection::OpenMode;
use crate::due_index::MIN_QUEUES;
use crate::error::{StoreResult, after_a_part};
use crate::reader::{ReadTx, ReaderPool, in_read_tx, open_verified};
use crate::shared::StoreShared;
use crate::task::{Access, Weight, WriterMessage};
use crate::write_tx::WriteTx;
use crate::writer_handle::WriterHandle;
use crate::{check, claim, registry, renew, schedule, settle};

/// Other callers can write between the chunks of a long batch.
const CHUNK_ITEMS: usize = 1_000;

const CHUNK_BYTES: usize = 4 * 1024 * 1024;

const READERS: u32 = 4;

const PLANNERS: u32 = 2;

/// A job without payload and headers, roughly.
const JOB_BYTES: usize = 128;

/// Backend that keeps delayed jobs in one SQLite file.
pub struct SqliteBackend {
    pub(crate) shared: Arc<StoreShared>,
    pub(crate) writer: WriterHandle,
    readers: ReaderPool,
    /// Separate, so that claims do not wait for long listings.
    pub(crate) planners: ReaderPool,
}

impl SqliteBackend {
    /// Opens the file; creates it and the tables if they do not exist.
    ///
    /// # Errors
    /// `Config` for invalid settings; `Incompatible` if the file is no SQLite database, holds
    /// foreign tables with the same names, or has a newer format; `ReadOnly` if it cannot be
    /// written; `Unavailable` if it cannot be opened or stays locked; `Full` if the disk is full.
    pub async fn open(config: &SqliteConfig, environment: &Environment) -> Result<Self> {
        Self::open_or(OpenMode::Create, config, environment).await
    }

    /// Opens an existing file with its tables, such as a drained store.
    ///
    /// # Errors
    /// `Config` if the file or the tables do not exist; otherwise see [`Self::open`].
    pub async fn open_existing(config: &SqliteConfig, environment: &Environment) -> Result<Self> {
        Self::open_or(OpenMode::Existing, config, environment).await
    }

    async fn open_or(
        mode: OpenMode,
        config: &SqliteConfig,
        environment: &Environment,
    ) -> Result<Self> {
        config.validate()?;
        let (number, version) = (rusqlite::version_number(), rusqlite::version());
        check::refuse_old_library(number, version)?;
        if let Some(finding) = check::corruption_bug(number, version) {
            tracing::error!("{finding}");
        }
        let writer = WriterHandle::start(config.clone(), mode, environment.clone()).await?;
        let shared = Arc::clone(&writer.shared);
        let readers = ReaderPool::new(Arc::clone(&shared), READERS);
        let planners = ReaderPool::new(Arc::clone(&shared), PLANNERS);
        Ok(Self { shared, writer, readers, planners })
    }

    /// Applies `apply` to all items, one transaction per chunk. `bytes` returns an item's size.
    ///
    /// # Errors
    /// The first failing chunk's error; if earlier chunks were committed, a retryable error becomes
    /// `OutcomeUnknown`.
    async fn batch<I, T>(
        &self,
        operation: &'static str,
        access: Access,
        items: Vec<I>,
        bytes: impl Fn(&I) -> usize,
        apply: impl Fn(&mut WriteTx<'_>, &I) -> StoreResult<T> + Copy + Send + 'static,
    ) -> Result<Vec<T>>
    where
        I: Send + 'static,
        T: Send + 'static,
    {
        let mut results = Vec::with_capacity(items.len());
        let mut remaining = items.into_iter().peekable();
        loop {
            let mut chunk = Vec::new();
            let mut weight = Weight::default();
            while weight.items < CHUNK_ITEMS && weight.bytes < CHUNK_BYTES {
                let Some(item) = remaining.next() else { break };
                weight.items += 1;
                weight.bytes += bytes(&item);
                chunk.push(item);
            }
            let work = move |tx: &mut WriteTx<'_>| {
                chunk.iter().map(|item| apply(tx, item)).collect::<StoreResult<Vec<T>>>()
            };
            let chunk_results = self.writer.submit(operation, access, weight, work).await;
            results.extend(chunk_results.map_err(|error| match results.len() {
                0 => error,
                done => after_a_part(operation, done, &error),
            })?);
            if remaining.peek().is_none() {
                return Ok(results);
            }
        }
    }

    pub(crate) async fn plan_claim(&self, wants: Arc<[Want]>, limit: usize) -> Result<ClaimPlan> {
        self.writer.ensure_open("claim")?;
        let plan = move |conn: &Connection, shared: &StoreShared| {
            // Before the transaction begins; see `DueIndex::fill`.
            let version = || lock(&shared.due_index).file_version(|| open_verified(shared));
            let version = (wants.len() >= MIN_QUEUES).then(version).transpose()?;
            let index = version.map(|version| (&shared.due_index, version));
            in_read_tx(conn, shared, |tx| {
                let queues = shared.find_queues(conn, wants.iter().map(|want| &want.queue))?;
                tx.plan_claim(&queues, &wants, limit, index)
            })
        };
        self.planners.with_connection("claim", plan).await
    }

    pub(crate) async fn claim_planned(
        &self,
        plan: ClaimPlan,
        limit: usize,
        worker: &str,
    ) -> Result<Claimed> {
        let worker = worker.to_owned();
        let writer = self.writer.messages.clone();
        let work = move |tx: &mut WriteTx<'_>| claim::claim(tx, &plan, limit, &worker);
        let guard = move |claimed| ClaimGuard { claimed, writer };
        let weight = Weight::items(limit);
        let guard = self.writer.submit_then("claim", Access::Write, weight, work, guard).await?;
        Ok(guard.into_claimed())
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        query: impl FnOnce(ReadTx<'_>) -> StoreResult<T> + Send + 'static,
    ) -> Result<T> {
        self.writer.ensure_open(operation)?;
        self.readers.read(operation, query).await
    }
}

impl fmt::Debug for SqliteBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteBackend").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for SqliteBackend {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn schedule_statement(&self, jobs: Vec<NewJob>) -> Result<SqlStatement> {
        self.job_statement(jobs)
    }

    fn done_statement(&self, lease: &Lease) -> Result<SqlStatement> {
        Ok(self.lease_statement(lease))
    }

    async fn now(&self) -> Result<Timestamp> {
        self.writer.ensure_open("now")?;
        Ok(self.shared.clock.now())
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let bytes = |job: &NewJob| JOB_BYTES + job.payload.len() + job.headers.size_bytes();
        self.batch("schedule", Access::Write, jobs, bytes, schedule::schedule).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.batch("cancel", Access::Write, jobs.to_vec(), |_| 0, schedule::cancel).await
    }

    async fn reschedule(&self, changes: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.batch("reschedule", Access::Write, changes.to_vec(), |_| 0, schedule::reschedule).await
    }

    async fn listen(&self, queues: &[QueueName], worker: &str) -> Result<Wakeups> {
        self.writer.ensure_open("listen")?;
        let wakeups = self.shared.listeners.listen(queues, worker);
        // Fails only if the writer has ended.
        let _ = self.writer.messages.send(WriterMessage::ListenerAdded);
        Ok(wakeups)
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let (wants, limit) = (Arc::<[Want]>::from(params.wants), params.limit);
        let mut plan = self.plan_claim(Arc::clone(&wants), limit).await?;
        if plan.clock_was_set_back {
            // Each write transaction shortens leases first.
            let nothing = |_: &mut WriteTx<'_>| Ok(());
            self.writer.submit("claim", Access::Write, Weight::ONE, nothing).await?;
            plan = self.plan_claim(wants, limit).await?;
        }
        if plan.claimable.is_empty() {
            return Ok(Claimed::new(Vec::new(), plan.next_due, plan.now));
        }
        self.claim_planned(plan, limit, params.worker).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let bytes = |settlement: &Settlement| match &settlement.verdict {
            Verdict::Again { payload, .. } => payload.len(),
            _ => 0,
        };
        let settlements = settlements.to_vec();
        self.batch("settle", Access::HeldLeases, settlements, bytes, settle::settle).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.batch("renew", Access::HeldLeases, renewals.to_vec(), |_| 0, renew::renew).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let queues = queues.to_vec();
        self.read("stats", move |tx| tx.stats(&queues)).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        let BrowseParams { state, after, limit, payloads, order, .. } = params;
        let queue = params.queue.clone();
        let browse = move |tx: ReadTx<'_>| {
            let params = BrowseParams::new(&queue, state).after(after).limit(limit);
            tx.browse(params.payloads(payloads).order(order))
        };
        self.read("browse", browse).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        let job = job.clone();
        self.read("get", move |tx| tx.get(&job)).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        self.execute(operation).await
    }

    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        let (queue, edges) = (queue.clone(), edges.to_vec());
        self.read("forecast", move |tx| tx.forecast(&queue, &edges)).await
    }

    async fn announce(&self, announcement: Announcement) -> Result<()> {
        let announce = move |tx: &mut WriteTx<'_>| registry::announce(tx, &announcement);
        self.writer.submit("announce", Access::Write, Weight::ONE, announce).await
    }

    async fn runners(&self) -> Result<Vec<Announced>> {
        self.read("runners", |tx| tx.runners()).await
    }

    async fn check(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        findings.extend(check::corruption_bug(rusqlite::version_number(), rusqlite::version()));
        let config = self.shared.config.clone();
        match self.read("check", move |tx| tx.findings(&config)).await {
            Ok(of_file) => findings.extend(of_file),
            Err(error) => findings.push(check::unreadable(&error)),
        }
        findings
    }

    async fn close(&self) -> Result<()> {
        // Readers first: the writer's connection, as the last, can then remove the write-ahead log.
        self.readers.close().await;
        self.planners.close().await;
        lock(&self.shared.due_index).close();
        self.writer.close().await;
        Ok(())
    }
}

#[typetag::deserialize(name = "sqlite")]
#[async_trait]
impl BackendConfig for SqliteConfig {
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(SqliteBackend::open(self, environment).await?))
    }

    async fn connect_existing(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(SqliteBackend::open_existing(self, environment).await?))
    }
}

dq_core::register_backend! {
    name: "sqlite",
    settings: SqliteConfig,
    schemes: ["sqlite"],
    from_url: |url| Ok(Box::new(SqliteConfig::from_url(url)?)),
}

#[cfg(test)]
mod tests {
    #[test]
    fn configuration_files_select_sqlite_by_type_and_unknown_fields_are_refused() {
        let read = |field: &str| {
            let table = format!("[backend]\ntype = \"sqlite\"\npath = \"jobs.db\"\n{field}");
            dq_core::config::Config::from_toml(&table)
        };
        let config = read("busy_timeout = \"2s\"").unwrap();
        assert!(format!("{:?}", config.backend).contains("2s"));
        let error = read("durable = true").unwrap_err();
        assert!(error.to_string().contains("durable"), "{error}");
    }
}
