//! The backend: connects, and passes each call on to the call's file, like `claim.rs`.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use dq_core::config::{BackendConfig, Environment, Migrated};
use dq_core::{
    Announced, Announcement, Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed,
    Error, ErrorKind, Finding, HistoryLimit, HistoryLimits, JobRef, JobView, Lease, Listeners,
    NewJob, OperateReport, Operation, Page, QueueName, QueueStats, Renewal, Renewed, Reschedule,
    Rescheduled, Result, Scheduled, Settled, Settlement, SqlStatement, Timestamp, Wakeups,
};
use tokio::task::AbortHandle;
use tokio_postgres::types::Type;

use crate::bounds::Bounds;
use crate::config::PostgresConfig;
use crate::connect::{Param, Pool};
use crate::error;
use crate::store::Store;
use crate::{listener, maintain, params, schema};

/// Backend that keeps delayed jobs in a PostgreSQL schema.
pub struct PostgresBackend {
    pub(crate) store: Arc<Store>,
    tasks: [AbortHandle; 2],
}

impl PostgresBackend {
    /// Connects; creates or migrates the schema if necessary.
    ///
    /// # Errors
    /// `Config` for invalid settings, wrong credentials or missing rights; `Unavailable` if the
    /// server cannot be reached; `ReadOnly` for a standby; `Incompatible` for an old server, or a
    /// schema that is not ours or newer.
    pub async fn connect(config: &PostgresConfig, environment: &Environment) -> Result<Self> {
        Self::open(config, environment, true).await.map_err(|error| error.operation("connect"))
    }

    /// Connects to an existing schema, such as a drained store.
    ///
    /// # Errors
    /// `Config` if the schema does not exist; otherwise see [`Self::connect`].
    pub async fn connect_existing(
        config: &PostgresConfig,
        environment: &Environment,
    ) -> Result<Self> {
        Self::open(config, environment, false).await.map_err(|error| error.operation("connect"))
    }

    async fn open(
        config: &PostgresConfig,
        environment: &Environment,
        creates: bool,
    ) -> Result<Self> {
        let pool = connect_pool(config)?;
        if !creates && !schema::exists(&pool, &config.schema).await? {
            let what = format!("there is no schema {} with jobs", config.schema);
            return Err(Error::new(ErrorKind::Config, what)
                .remedy("correct the database and `schema`, or create it by `dq migrate`"));
        }
        schema::ensure(&pool, &config.schema, None).await?;
        let store = Arc::new(Store {
            pool,
            schema: config.schema.clone(),
            listeners: Listeners::default(),
            bounds: Mutex::new(Bounds::default()),
            last_claims: Mutex::new(HashMap::new()),
            ended: Mutex::new(HashSet::new()),
            buckets: Mutex::new(HashMap::new()),
        });
        store.declare_histories(&environment.history).await?;
        let tasks = [
            tokio::spawn(listener::run(Arc::clone(&store))).abort_handle(),
            tokio::spawn(maintain::run(Arc::clone(&store))).abort_handle(),
        ];
        Ok(Self { store, tasks })
    }
}

fn connect_pool(config: &PostgresConfig) -> Result<Pool> {
    config.validate()?;
    let &PostgresConfig { connections, response_timeout, prepare, .. } = config;
    Pool::new(config.server()?, connections, response_timeout, prepare)
}

impl Store {
    /// Stores the configured history limits. Other queues' limits stay, because other programs set
    /// them.
    async fn declare_histories(&self, limits: &HistoryLimits) -> Result<()> {
        let max = |limit: &HistoryLimit| params::count(limit.max as usize);
        let age = |limit: &HistoryLimit| params::millis(limit.age);
        let (default_max, default_age) =
            (limits.default.as_ref().map(max), limits.default.as_ref().map(age));
        let names: Vec<&str> = limits.queues.keys().map(QueueName::as_str).collect();
        let maxes: Vec<i32> = limits.queues.values().map(max).collect();
        let ages: Vec<i64> = limits.queues.values().map(age).collect();
        if default_max.is_none() && names.is_empty() {
            return Ok(());
        }
        let params: [Param<'_>; 5] = [
            (&default_max, Type::INT4),
            (&default_age, Type::INT8),
            (&names, Type::TEXT_ARRAY),
            (&maxes, Type::INT4_ARRAY),
            (&ages, Type::INT8_ARRAY),
        ];
        self.change("SELECT dq.limit_histories($1, $2, $3, $4, $5)", &params).await.map(drop)
    }
}

impl Drop for PostgresBackend {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBackend")
            .field("server", &self.store.pool.server().shown)
            .field("schema", &self.store.schema)
            .finish_non_exhaustive()
    }
}

async fn named<T>(operation: &'static str, call: impl Future<Output = Result<T>>) -> Result<T> {
    call.await.map_err(|error| error.operation(operation))
}

#[async_trait]
impl Backend for PostgresBackend {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    async fn now(&self) -> Result<Timestamp> {
        named("now", self.store.now()).await
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        named("schedule", self.store.store_jobs(&jobs)).await
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        named("cancel", self.store.cancel_jobs(jobs)).await
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        named("reschedule", self.store.reschedule_jobs(moves)).await
    }

    fn schedule_statement(&self, jobs: Vec<NewJob>) -> Result<SqlStatement> {
        let sql = "SELECT outcome, job_id, job_due FROM dq.schedule_jobs($1)";
        Ok(SqlStatement::of_jobs(self.store.in_schema(sql), &jobs))
    }

    fn done_statement(&self, lease: &Lease) -> Result<SqlStatement> {
        self.store.mark_ended(&lease.queue);
        Ok(SqlStatement::of_lease(self.store.in_schema("SELECT dq.done($1)"), lease))
    }

    async fn listen(&self, queues: &[QueueName], worker: &str) -> Result<Wakeups> {
        if self.store.pool.is_closed().await {
            return Err(error::closed().operation("listen"));
        }
        Ok(self.store.listeners.listen(queues, worker))
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        named("claim", self.store.claim_jobs(params)).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        named("settle", self.store.settle_leases(settlements)).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        named("renew", self.store.renew_leases(renewals)).await
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        named("stats", self.store.count_jobs(queues)).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        named("browse", self.store.list_jobs(&params)).await
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        named("get", self.store.find_job(job)).await
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        named("operate", self.store.run_operation(operation)).await
    }

    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        named("forecast", self.store.count_due(queue, edges)).await
    }

    async fn announce(&self, announcement: Announcement) -> Result<()> {
        named("announce", self.store.announce_runner(&announcement)).await
    }

    async fn runners(&self) -> Result<Vec<Announced>> {
        named("runners", self.store.list_runners()).await
    }

    async fn check(&self) -> Vec<Finding> {
        self.store.findings().await
    }

    async fn close(&self) -> Result<()> {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.store.pool.close().await;
        Ok(())
    }
}

#[typetag::deserialize(name = "postgres")]
#[async_trait]
impl BackendConfig for PostgresConfig {
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(PostgresBackend::connect(self, environment).await?))
    }

    async fn connect_existing(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(PostgresBackend::connect_existing(self, environment).await?))
    }

    fn schema_sql(&self, role: Option<&str>) -> Result<String> {
        self.validate()?;
        Ok(schema::script(&self.schema, role))
    }

    async fn migrate(&self, role: Option<&str>) -> Result<Migrated> {
        named("migrate", async { schema::ensure(&connect_pool(self)?, &self.schema, role).await })
            .await
    }
}

dq_core::register_backend! {
    name: "postgres",
    settings: PostgresConfig,
    schemes: ["postgres", "postgresql"],
    from_url: |url| Ok(Box::new(PostgresConfig::from_url(url)?)),
}
