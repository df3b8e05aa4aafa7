//! The backend: each call becomes work for the writer or a look by a reader.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use dq_core::config::Environment;
use dq_core::{
    Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed, Finding, JobRef, JobView,
    NewJob, OperateReport, Operation, Page, QueueName, QueueStats, Renewal, Renewed, Reschedule,
    Rescheduled, Result, Scheduled, Settled, Settlement, Timestamp, Wakeups,
};

use crate::config::SqliteConfig;
use crate::error::Outcome;
use crate::granted::Granted;
use crate::reader::{Look, Readers, View};
use crate::shared::Shared;
use crate::sql::Sql;
use crate::submit::{Submitter, Weight};
use crate::tx::Tx;
use crate::wake::Switchboard;
use crate::{check, claim, schedule, settle};

/// Items per transaction of a long batch; others are let in between.
const CHUNK: usize = 1_000;

/// Bytes of payloads per transaction of a long batch.
const CHUNK_BYTES: usize = 4 * 1024 * 1024;

/// What a job takes besides its payload and headers, roughly.
const JOB_BYTES: usize = 128;

/// Delayed jobs in one SQLite file.
pub struct SqliteBackend {
    pub(crate) shared: Arc<Shared>,
    pub(crate) submitter: Submitter,
    readers: Readers,
}

impl SqliteBackend {
    /// Opens the file, and makes it or the tables if they are absent.
    ///
    /// # Errors
    /// `Config` for settings that cannot be used; `Incompatible` for a file that is no SQLite
    /// database, holds tables of others under our names, or is of a newer format; `ReadOnly`;
    /// `Unavailable`; `Full`.
    pub async fn open(config: &SqliteConfig, environment: &Environment) -> Result<Self> {
        config.validate()?;
        check::refuse_ancient_library(rusqlite::version_number(), rusqlite::version())?;
        if let Some(finding) = check::library(rusqlite::version_number(), rusqlite::version()) {
            tracing::error!("{finding}");
        }
        let shared = Arc::new(Shared {
            config: config.clone(),
            sql: Sql::new(&config.table_prefix),
            clock: Arc::clone(&environment.clock),
            switchboard: Switchboard::default(),
        });
        let submitter = Submitter::start(Arc::clone(&shared)).await?;
        let readers = Readers::new(Arc::clone(&shared));
        Ok(Self { shared, submitter, readers })
    }

    /// Applies `each` to all items, a chunk per transaction.
    async fn batch<I, T>(
        &self,
        operation: &'static str,
        items: Vec<I>,
        bytes: impl Fn(&I) -> usize,
        each: impl Fn(&mut Tx<'_>, &I) -> Outcome<T> + Copy + Send + 'static,
    ) -> Result<Vec<T>>
    where
        I: Send + 'static,
        T: Send + 'static,
    {
        let mut answers = Vec::with_capacity(items.len());
        let mut rest = items.into_iter().peekable();
        loop {
            let mut chunk = Vec::new();
            let mut weight = Weight::default();
            while weight.items < CHUNK && weight.bytes < CHUNK_BYTES {
                let Some(item) = rest.next() else { break };
                weight.items += 1;
                weight.bytes += bytes(&item);
                chunk.push(item);
            }
            let work = move |tx: &mut Tx<'_>| {
                chunk.iter().map(|item| each(tx, item)).collect::<Outcome<Vec<T>>>()
            };
            answers.extend(self.submitter.submit(operation, weight, work).await?);
            if rest.peek().is_none() {
                return Ok(answers);
            }
        }
    }

    /// Looks at the store as it is once lapsed leases have been given back.
    async fn look<T: Send + 'static>(
        &self,
        operation: &'static str,
        look: impl Fn(View<'_>) -> Outcome<T> + Clone + Send + 'static,
    ) -> Result<T> {
        loop {
            self.submitter.ensure_open(operation)?;
            match self.readers.look(operation, look.clone()).await? {
                Look::Seen(seen) => return Ok(seen),
                // Every transaction begins with that; it needs no work of its own.
                Look::Lapsed => self.submitter.submit(operation, Weight::ONE, |_| Ok(())).await?,
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
        self.submitter.ensure_open("now")?;
        Ok(self.shared.clock.now())
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let bytes = |job: &NewJob| JOB_BYTES + job.payload.len() + job.headers.bytes();
        self.batch("schedule", jobs, bytes, schedule::schedule).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        self.batch("cancel", jobs.to_vec(), |_| 0, schedule::cancel).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        self.batch("reschedule", moves.to_vec(), |_| 0, schedule::reschedule).await
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        self.submitter.ensure_open("listen")?;
        let wakeups = self.shared.switchboard.listen(queues);
        self.submitter.look();
        Ok(wakeups)
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let (wants, worker) = (params.wants.to_vec(), params.worker.to_owned());
        let limit = params.limit;
        let errands = self.submitter.errands();
        let weight = Weight::items(wants.len());
        let work = move |tx: &mut Tx<'_>| claim::claim(tx, &wants, limit, &worker);
        let grant = move |claimed| Granted::confirmed(claimed, errands);
        let granted = self.submitter.submit_then("claim", weight, work, grant).await?;
        Ok(granted.accept())
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        self.batch("settle", settlements.to_vec(), |_| 0, settle::settle).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        self.batch("renew", renewals.to_vec(), |_| 0, claim::renew).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let queues = queues.to_vec();
        self.look("stats", move |view| view.stats(&queues)).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        let (queue, state) = (params.queue.clone(), params.state);
        let (after, limit) = (params.after, params.limit);
        self.look("browse", move |view| view.browse(&queue, state, after, limit)).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        let job = job.clone();
        self.look("get", move |view| view.get(&job)).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let affected = self.intervene(operation).await?;
        Ok(OperateReport { affected })
    }

    async fn check(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        findings.extend(check::library(rusqlite::version_number(), rusqlite::version()));
        findings.extend(check::settings(&self.shared.config));
        let look =
            |view: View<'_>| Ok((view.page_bytes()?, view.never_shrinks()?, view.bad_names()?));
        match self.look("check", look).await {
            Ok((page_bytes, never_shrinks, bad_names)) => {
                findings.extend(check::log(&self.shared.config, page_bytes));
                findings.extend(never_shrinks);
                findings.extend(bad_names);
            }
            Err(error) => findings.push(check::unreadable(&error)),
        }
        findings
    }

    async fn close(&self) -> Result<()> {
        // Readers first, so that the writer's is the last connection and can clear the log away.
        self.readers.close().await;
        self.submitter.close().await;
        Ok(())
    }
}
