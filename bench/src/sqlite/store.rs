//! A SQLite backend with a virtual clock, and a runtime for its calls.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dq::backend::Backend;
use dq::config::Environment;
use dq::sqlite::rusqlite::Connection;
use dq::sqlite::{SqliteBackend, SqliteConfig};
use dq::{Entropy, Timestamp, VirtualClock};
use tokio::runtime::Runtime;

use crate::measure::runtime;
use crate::plan::{Plan, Result};
use crate::workload::WEEK;

#[derive(Debug)]
pub(super) struct SqliteStore {
    backend: Arc<SqliteBackend>,
    clock: Arc<VirtualClock>,
    pub(super) path: PathBuf,
    runtime: Runtime,
}

impl SqliteStore {
    pub(super) fn open(plan: &Plan, file: impl AsRef<Path>) -> Result<Self> {
        let clock = Arc::new(VirtualClock::new(SystemTime::now().into()));
        let path = plan.dir.join(file);
        let config = SqliteConfig::new(&path);
        let runtime = runtime(2);
        let environment = Environment::new(clock.clone(), Arc::new(Entropy::from_os()));
        let opening = SqliteBackend::open(&config, &environment);
        let backend = Arc::new(runtime.block_on(opening)?);
        Ok(Self { backend, clock, path, runtime })
    }

    pub(super) fn backend(&self) -> Arc<SqliteBackend> {
        Arc::clone(&self.backend)
    }

    pub(super) fn now(&self) -> Timestamp {
        dq::Clock::now(&*self.clock)
    }

    /// Advances the clock until all workload jobs are due.
    pub(super) fn make_all_due(&self) {
        self.clock.advance(Duration::from_millis(WEEK.unsigned_abs()));
    }

    pub(super) fn block_on<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.runtime.block_on(async { tokio::spawn(call).await? })
    }

    /// File size in bytes, once the log is checkpointed.
    pub(super) fn file_bytes(&self) -> Result<u64> {
        let conn = Connection::open(&self.path)?;
        let pragma = |name| conn.pragma_query_value(None, name, |row| row.get::<_, u32>(0));
        Ok(u64::from(pragma("page_count")?) * u64::from(pragma("page_size")?))
    }

    pub(super) fn close(self) -> Result<PathBuf> {
        self.runtime.block_on(self.backend.close())?;
        Ok(self.path)
    }

    pub(super) fn discard(self) -> Result<()> {
        Ok(std::fs::remove_file(self.close()?)?)
    }
}
