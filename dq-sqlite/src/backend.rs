//! The backend: each call becomes a task of the writer thread or a read.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use dq_core::config::{BackendConfig, Environment};
use dq_core::{
    Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed, Finding, JobRef, JobView,
    Listeners, NewJob, OperateReport, Operation, Page, QueueName, QueueStats, Renewal, Renewed,
    Reschedule, Rescheduled, Result, Scheduled, Settled, Settlement, Timestamp, Wakeups,
};

use crate::claim::ClaimGuard;
use crate::config::SqliteConfig;
use crate::error::StoreResult;
use crate::operate::Operator;
use crate::reader::{ReadResult, ReadTx, ReaderPool};
use crate::shared::StoreShared;
use crate::statements::Statements;
use crate::task::Weight;
use crate::write_tx::WriteTx;
use crate::writer_handle::WriterHandle;
use crate::{check, claim, renew, schedule, settle};

/// Items per transaction of a long batch; other callers can write in between.
const CHUNK_ITEMS: usize = 1_000;

/// Bytes of payloads per transaction of a long batch.
const CHUNK_BYTES: usize = 4 * 1024 * 1024;

/// Approximate size of a job without its payload and headers.
const JOB_BYTES: usize = 128;

/// Backend that keeps delayed jobs in one SQLite file.
pub struct SqliteBackend {
    pub(crate) shared: Arc<StoreShared>,
    pub(crate) writer: WriterHandle,
    readers: ReaderPool,
}

impl SqliteBackend {
    /// Opens the file; creates it and the tables if they do not exist.
    ///
    /// # Errors
    /// `Config` for invalid settings; `Incompatible` for a file that is not a SQLite database, holds
    /// foreign tables with the same names, or has a newer format; `ReadOnly` if the file cannot be
    /// written; `Unavailable` if it cannot be opened or stays locked; `Full` if the disk is full.
    pub async fn open(config: &SqliteConfig, environment: &Environment) -> Result<Self> {
        config.validate()?;
        check::refuse_old_library(rusqlite::version_number(), rusqlite::version())?;
        if let Some(finding) = check::library(rusqlite::version_number(), rusqlite::version()) {
            tracing::error!("{finding}");
        }
        let shared = Arc::new(StoreShared {
            config: config.clone(),
            statements: Statements::new(&config.table_prefix),
            clock: Arc::clone(&environment.clock),
            listeners: Listeners::default(),
        });
        let writer = WriterHandle::start(Arc::clone(&shared)).await?;
        let readers = ReaderPool::new(Arc::clone(&shared));
        Ok(Self { shared, writer, readers })
    }

    /// Applies `apply` to all items, one transaction per chunk.
    async fn batch<I, T>(
        &self,
        operation: &'static str,
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
            results.extend(self.writer.submit(operation, weight, work).await?);
            if remaining.peek().is_none() {
                return Ok(results);
            }
        }
    }

    /// Runs `query` on a snapshot without lapsed leases.
    async fn read<T: Send + 'static>(
        &self,
        operation: &'static str,
        query: impl Fn(ReadTx<'_>) -> StoreResult<T> + Clone + Send + 'static,
    ) -> Result<T> {
        loop {
            self.writer.ensure_open(operation)?;
            match self.readers.read(operation, query.clone()).await? {
                ReadResult::Value(value) => return Ok(value),
                // Each write transaction returns lapsed leases first, so an empty task is enough.
                ReadResult::LapsedLease => {
                    self.writer.submit(operation, Weight::ONE, |_| Ok(())).await?;
                }
            }
        }
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

    async fn now(&self) -> Result<Timestamp> {
        self.writer.ensure_open("now")?;
        Ok(self.shared.clock.now())
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let bytes = |job: &NewJob| JOB_BYTES + job.payload.len() + job.headers.size_bytes();
        self.batch("schedule", jobs, bytes, schedule::schedule).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.batch("cancel", jobs.to_vec(), |_| 0, schedule::cancel).await
    }

    async fn reschedule(&self, changes: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.batch("reschedule", changes.to_vec(), |_| 0, schedule::reschedule).await
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        self.writer.ensure_open("listen")?;
        let wakeups = self.shared.listeners.listen(queues);
        self.writer.listener_added();
        Ok(wakeups)
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let (wants, worker) = (params.wants.to_vec(), params.worker.to_owned());
        let limit = params.limit;
        let background_writes = self.writer.background_writes();
        let weight = Weight::items(wants.len());
        let work = move |tx: &mut WriteTx<'_>| claim::claim(tx, &wants, limit, &worker);
        let guard = move |claimed| ClaimGuard::new(claimed, background_writes);
        let guard = self.writer.submit_then("claim", weight, work, guard).await?;
        Ok(guard.into_claimed())
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.batch("settle", settlements.to_vec(), |_| 0, settle::settle).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.batch("renew", renewals.to_vec(), |_| 0, renew::renew).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let queues = queues.to_vec();
        self.read("stats", move |tx| tx.stats(&queues)).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        let (queue, state) = (params.queue.clone(), params.state);
        let (after, limit) = (params.after, params.limit);
        self.read("browse", move |tx| tx.browse(&queue, state, after, limit)).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        let job = job.clone();
        self.read("get", move |tx| tx.get(&job)).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let operator = Operator { shared: &self.shared, writer: &self.writer };
        let affected = operator.operate(operation).await?;
        Ok(OperateReport { affected })
    }

    async fn check(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        findings.extend(check::library(rusqlite::version_number(), rusqlite::version()));
        findings.extend(check::settings(&self.shared.config));
        let query =
            |tx: ReadTx<'_>| Ok((tx.page_bytes()?, tx.never_shrinks()?, tx.invalid_queue_names()?));
        match self.read("check", query).await {
            Ok((page_bytes, never_shrinks, invalid_names)) => {
                findings.extend(check::log(&self.shared.config, page_bytes));
                findings.extend(never_shrinks);
                findings.extend(invalid_names);
            }
            Err(error) => findings.push(check::unreadable(&error)),
        }
        findings
    }

    async fn close(&self) -> Result<()> {
        // Readers first: the writer's connection is then the last one and can remove the log.
        self.readers.close().await;
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
}

dq_core::register_backend! {
    name: "sqlite",
    schemes: ["sqlite"],
    from_url: |url| Ok(Box::new(SqliteConfig::from_url(url)?)),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_files_select_it_by_type_and_unknown_fields_are_refused() {
        let read = serde_json::from_str::<Box<dyn BackendConfig>>;
        let config = read(r#"{"type": "sqlite", "path": "jobs.db", "busy_timeout": "2s"}"#);
        assert!(format!("{:?}", config.unwrap()).contains("2s"));
        let error = read(r#"{"type": "sqlite", "path": "jobs.db", "durable": true}"#).unwrap_err();
        assert!(error.to_string().contains("durable"), "{error}");
    }
}
