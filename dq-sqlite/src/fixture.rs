//! Backends on one file, with a virtual clock, for tests of this crate's inner parts.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use dq_core::config::Environment;
use dq_core::{Backend, ClaimParams, Claimed, Due, Entropy, NewJob, QueueName, VirtualClock, Want};
use tempfile::TempDir;

use crate::task::{Access, Weight};
use crate::write_tx::WriteTx;
use crate::{SqliteBackend, SqliteConfig};

pub(crate) const LEASE: Duration = Duration::from_secs(60);

pub(crate) struct Fixture {
    pub(crate) backend: Arc<SqliteBackend>,
    pub(crate) environment: Environment,
    pub(crate) dir: TempDir,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(VirtualClock::default());
        let environment = Environment::new(clock, Arc::new(Entropy::seeded(7)));
        let config = SqliteConfig::new(dir.path().join("jobs.db"));
        let backend = Arc::new(SqliteBackend::open(&config, &environment).await.unwrap());
        Self { backend, environment, dir }
    }

    pub(crate) fn job(&self, queue: usize, due: impl Into<Due>) -> NewJob {
        let id = self.environment.entropy.job_id(self.environment.clock.now());
        NewJob::new(id, name(queue), due, Bytes::from_static(b"{}"))
    }

    /// Blocks the writer in a transaction until the returned sender sends or is dropped.
    pub(crate) async fn block_writer(&self) -> mpsc::Sender<()> {
        let (unblock, blocked) = mpsc::channel();
        let (entered, entering) = mpsc::channel();
        let backend = Arc::clone(&self.backend);
        tokio::spawn(async move {
            let wait = move |_: &mut WriteTx<'_>| {
                entered.send(()).unwrap();
                let _ = blocked.recv();
                Ok(())
            };
            let _ = backend.writer.submit("test", Access::Write, Weight::ONE, wait).await;
        });
        tokio::task::yield_now().await;
        entering.recv().unwrap();
        unblock
    }

    pub(crate) async fn claim(&self, queues: impl Iterator<Item = usize>) -> Claimed {
        let wants = wants(queues);
        self.backend.claim(ClaimParams::new(&wants, wants.len(), "test")).await.unwrap()
    }
}

pub(crate) fn name(queue: usize) -> QueueName {
    QueueName::new(format!("queue-{queue}")).unwrap()
}

pub(crate) fn wants(queues: impl Iterator<Item = usize>) -> Vec<Want> {
    queues.map(|queue| Want::new(name(queue), 1, LEASE)).collect()
}
