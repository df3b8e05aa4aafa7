//! The callers' side of the writer thread.

use std::path::Path;
use std::sync::{Arc, mpsc};

use dq_core::config::Environment;
use dq_core::{Error, ErrorKind, Result};
use tokio::sync::{OnceCell, Semaphore, oneshot};

use crate::config::SqliteConfig;
use crate::connection::OpenMode;
use crate::error::{StoreResult, closed};
use crate::shared::StoreShared;
use crate::task::{Access, Task, Weight, WriterMessage};
use crate::write_tx::WriteTx;
use crate::writer::{Writer, open_store};

/// More callers wait for a slot. Tasks for held leases need none: there are only as many as running
/// jobs.
const TASK_SLOTS: usize = 1_024;

#[derive(Debug)]
pub(crate) struct WriterHandle {
    pub(crate) shared: Arc<StoreShared>,
    // Not a bounded channel: senders wait asynchronously, and the receiver needs `recv_timeout`,
    // which tokio's channel lacks.
    slots: Arc<Semaphore>,
    pub(crate) messages: mpsc::Sender<WriterMessage>,
    closed: OnceCell<()>,
}

impl WriterHandle {
    pub(crate) async fn start(
        config: SqliteConfig,
        mode: OpenMode,
        environment: Environment,
    ) -> Result<Self> {
        let path = config.path.clone();
        let opening = tokio::task::spawn_blocking(move || open_store(config, mode, environment));
        let opened = opening.await.map_err(|_| writer_died("connect", &path))?;
        let (session, shared) = opened.map_err(|error| error.into_error("connect", &path))?;
        let (messages, receiver) = mpsc::channel();
        let writer = Writer::new(Arc::clone(&shared), session, receiver);
        std::thread::Builder::new()
            .name("dq-sqlite".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| {
                Error::new(ErrorKind::Unavailable, "the writer thread could not be started")
                    .remedy("raise the limit of threads")
                    .source(error)
                    .operation("connect")
            })?;
        let slots = Arc::new(Semaphore::new(TASK_SLOTS));
        Ok(Self { shared, slots, messages, closed: OnceCell::new() })
    }

    pub(crate) async fn submit<T: Send + 'static>(
        &self,
        operation: &'static str,
        access: Access,
        weight: Weight,
        work: impl FnOnce(&mut WriteTx<'_>) -> StoreResult<T> + Send + 'static,
    ) -> Result<T> {
        self.submit_then(operation, access, weight, work, |value| value).await
    }

    /// `on_commit` runs only after a successful commit, so it never sees rolled back work.
    pub(crate) async fn submit_then<T: Send + 'static, R: Send + 'static>(
        &self,
        operation: &'static str,
        access: Access,
        weight: Weight,
        work: impl FnOnce(&mut WriteTx<'_>) -> StoreResult<T> + Send + 'static,
        on_commit: impl FnOnce(T) -> R + Send + 'static,
    ) -> Result<R> {
        let slot = match access {
            Access::Write => {
                let slot = Arc::clone(&self.slots).acquire_owned().await;
                Some(slot.map_err(|_| closed(operation))?)
            }
            Access::HeldLeases => {
                self.ensure_open(operation)?;
                None
            }
        };
        let (task, reply) = Task::new(access, weight, slot, work, on_commit);
        self.messages.send(WriterMessage::Task(task)).map_err(|_| self.no_reply(operation))?;
        match reply.await {
            Ok(result) => {
                result.map_err(|error| error.into_error(operation, &self.shared.config.path))
            }
            Err(_) => Err(self.no_reply(operation)),
        }
    }

    pub(crate) fn ensure_open(&self, operation: &'static str) -> Result<()> {
        if self.slots.is_closed() { Err(closed(operation)) } else { Ok(()) }
    }

    pub(crate) async fn close(&self) {
        self.slots.close();
        self.closed
            .get_or_init(|| async {
                let (done, ended) = oneshot::channel();
                if self.messages.send(WriterMessage::Close(done)).is_ok() {
                    let _ = ended.await;
                }
            })
            .await;
    }

    fn no_reply(&self, operation: &'static str) -> Error {
        if self.slots.is_closed() {
            closed(operation)
        } else {
            writer_died(operation, &self.shared.config.path)
        }
    }
}

fn writer_died(operation: &'static str, path: &Path) -> Error {
    let message = format!("{}: the writer thread has panicked", path.display());
    Error::new(ErrorKind::Internal, message)
        .remedy("open the store again, and please report the panic")
        .operation(operation)
}
