//! Declares exchanges, queues and bindings, or checks that they exist.
//!
//! Jobs depend only on the objects of the log. These are declared first, and again when the log's
//! tasks miss one. Everything else delivers messages: it is declared when the backend connects, and
//! later [`keep`](Topology::keep) restores missing objects in the background. So a process works
//! although a classic queue's node is down or the right to configure was revoked.

mod declaration;
pub(crate) mod ladder;
pub(crate) mod names;
mod objects;
mod walk;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{Error, ErrorKind, QueueName, Result};
use tokio::sync::Notify;

use self::declaration::Declaration;
use self::objects::Objects;
use self::walk::{Intent, Rejected, walk};
use crate::config::{RabbitConfig, TopologyMode};
use crate::connect::AmqpConnection;
use crate::error::{self, Permission, Refusal};
use crate::log::generation::Generation;
use crate::topology::ladder::Ladder;
use crate::topology::names::{ObjectNames, Topic};

/// How many missing objects an error names.
const MAX_NAMED: usize = 8;

/// Pauses before further attempts if the broker does not find an object: while several processes
/// declare a queue, it is known before it has started.
const NOT_FOUND_PAUSES: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(600), Duration::from_millis(1800)];

/// Pauses before an attempt to restore, and after one that failed.
const RESTORE_PAUSE: Duration = Duration::from_secs(1);
const FAILED_RESTORE_PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Topology {
    connection: Arc<AmqpConnection>,
    objects: Objects,
    ladder: Ladder,
    /// The job queues whose ready queue exists.
    ready: Mutex<HashSet<QueueName>>,
    restoring: tokio::sync::Mutex<()>,
    /// How often missing objects were restored.
    restored: AtomicU64,
    /// Signals that something may be missing.
    missed: Notify,
    /// Why the last attempt to restore objects failed.
    failure: Mutex<Option<Error>>,
}

impl Topology {
    pub(crate) fn new(connection: Arc<AmqpConnection>, config: &RabbitConfig) -> Self {
        Self {
            connection,
            objects: Objects::new(config),
            ladder: Ladder {
                names: ObjectNames::new(&config.prefix),
                kind: config.ladder,
                has_plugin: config.topology == TopologyMode::Plugin,
            },
            ready: Mutex::default(),
            restoring: tokio::sync::Mutex::default(),
            restored: AtomicU64::new(0),
            missed: Notify::new(),
            failure: Mutex::default(),
        }
    }

    pub(crate) fn names(&self) -> &ObjectNames {
        &self.objects.names
    }

    pub(crate) fn ladder(&self) -> &Ladder {
        &self.ladder
    }

    pub(crate) fn failure(&self) -> Option<String> {
        lock(&self.failure).as_ref().map(ToString::to_string)
    }

    /// Declares the log's objects; with [`TopologyMode::Passive`], checks that all objects exist.
    pub(crate) async fn prepare(&self) -> Result<()> {
        if self.objects.mode != TopologyMode::Passive {
            return self.declare_log().await;
        }
        let all = [self.objects.log(), self.objects.messages()].concat();
        self.expect(&all, Inaccessible::IsLeftOut).await
    }

    /// Declares everything that the log needs, except generations.
    pub(crate) async fn declare_log(&self) -> Result<()> {
        self.declare(self.objects.log(), Inaccessible::IsAnError).await
    }

    /// Binds a generation without declaring it: a deleted one must not come back.
    pub(crate) async fn bind_generation(&self, generation: Generation) -> Result<()> {
        let mut declarations = self.objects.generation(generation);
        declarations.retain(|declaration| !declaration.is_checkable());
        self.declare_all(declarations, Inaccessible::IsAnError).await
    }

    /// Declares a generation, in every mode, because generations come and go.
    pub(crate) async fn declare_generation(&self, generation: Generation) -> Result<()> {
        let declarations = self.objects.generation(generation);
        self.declare_all(declarations, Inaccessible::IsAnError).await
    }

    pub(crate) async fn has_generation(&self, generation: Generation) -> Result<bool> {
        let declarations = self.objects.generation(generation);
        let rejected = walk(&self.connection, &declarations, Intent::Check, |_| true).await?;
        match rejected.into_iter().next() {
            Some(rejected) if rejected.refusal == Refusal::NotFound => Ok(false),
            Some(rejected) => Err(rejected.error),
            None => Ok(true),
        }
    }

    pub(crate) async fn delete_generations(
        &self,
        generations: impl IntoIterator<Item = Generation>,
    ) -> Result<()> {
        let failed = |error: lapin::Error| {
            let broker = self.connection.broker_info();
            error::from_use("compact the log", Permission::Configure, broker, &error)
        };
        let channel = self.connection.channel("compact the log").await?;
        for generation in generations {
            let name = self.objects.names.generation(generation);
            channel.delete_queue(name).received().await.map_err(failed)?;
        }
        channel.close().await;
        Ok(())
    }

    /// Declares everything for messages. Leaves out queues that are not available now.
    pub(crate) async fn declare_messages(&self) -> Result<()> {
        self.declare(self.objects.messages(), Inaccessible::IsLeftOut).await
    }

    /// Declares a job queue's ready queue. Asks the broker once, and again after
    /// [`forget_ready`](Self::forget_ready).
    pub(crate) async fn declare_ready(&self, queue: &QueueName) -> Result<()> {
        if lock(&self.ready).contains(queue) {
            return Ok(());
        }
        let declarations = self.objects.ready_queue(&Topic::of(queue));
        self.declare(declarations, Inaccessible::IsAnError).await?;
        lock(&self.ready).insert(queue.clone());
        Ok(())
    }

    pub(crate) fn forget_ready(&self, queue: &QueueName) {
        lock(&self.ready).remove(queue);
    }

    /// Makes [`keep`](Self::keep) look for missing objects.
    pub(crate) fn report_missing(&self) {
        self.missed.notify_one();
    }

    /// Declares everything for messages again, and forgets which ready queues exist. Concurrent
    /// calls share one attempt.
    pub(crate) async fn restore(&self) -> Result<()> {
        let before = self.restored.load(Ordering::Acquire);
        let _guard = self.restoring.lock().await;
        if self.restored.load(Ordering::Acquire) != before {
            return Ok(());
        }
        lock(&self.ready).clear();
        let restored = self.declare_messages().await;
        *lock(&self.failure) = restored.as_ref().err().cloned();
        restored?;
        self.restored.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Restores objects after [`report_missing`](Self::report_missing), and after a new connection,
    /// because the broker may have lost queues. Never ends.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut connection_epoch = self.connection.epoch();
        loop {
            tokio::select! {
                () = self.missed.notified() => {
                    tracing::warn!("exchanges or queues are missing and will be restored");
                }
                () = self.connection.replaced(connection_epoch) => {}
            }
            // Whoever has deleted one object may be deleting others.
            tokio::time::sleep(RESTORE_PAUSE).await;
            connection_epoch = self.connection.epoch();
            if let Err(error) = self.restore().await {
                tracing::warn!(%error, "jobs run from the log: the rest is incomplete");
                self.report_missing();
                tokio::time::sleep(FAILED_RESTORE_PAUSE).await;
            }
        }
    }

    /// Declares these objects. With [`TopologyMode::Passive`], only checks that they exist.
    async fn declare(&self, declarations: Vec<Declaration>, down: Inaccessible) -> Result<()> {
        if self.objects.mode == TopologyMode::Passive {
            return self.expect(&declarations, down).await;
        }
        self.declare_all(declarations, down).await
    }

    /// Declares objects, which must have the right settings. Existing ones need no right to
    /// configure.
    async fn declare_all(
        &self,
        mut declarations: Vec<Declaration>,
        down: Inaccessible,
    ) -> Result<()> {
        let goes_on = |rejected: &Rejected| down.allows(rejected);
        let mut pauses = NOT_FOUND_PAUSES.iter();
        loop {
            let mut rejected =
                walk(&self.connection, &declarations, Intent::Declare, goes_on).await?;
            rejected.retain(|rejected| !down.is_left_out(rejected));
            let Some(last) = rejected.last() else { return Ok(()) };
            if last.refusal == Refusal::Forbidden && declarations[last.index].is_checkable() {
                // If everything exists, only the right to configure is missing.
                let goes_on = |rejected: &Rejected| down.is_left_out(rejected);
                let missing = walk(&self.connection, &declarations, Intent::Check, goes_on).await?;
                if missing.iter().all(goes_on) {
                    return Ok(());
                }
            }
            match pauses.next() {
                Some(pause) if last.refusal == Refusal::NotFound => {
                    let again = rejected.iter().map(|rejected| rejected.index);
                    declarations = again.map(|index| declarations[index].clone()).collect();
                    tokio::time::sleep(*pause).await;
                }
                _ => {
                    return rejected.pop().map_or(Ok(()), |rejected| Err(rejected.error));
                }
            }
        }
    }

    /// Checks that these objects exist.
    ///
    /// # Errors
    /// `Config` with the names of missing objects.
    async fn expect(&self, declarations: &[Declaration], down: Inaccessible) -> Result<()> {
        let mut missing = Vec::new();
        let goes_on = |rejected: &Rejected| {
            if rejected.refusal == Refusal::NotFound {
                missing.push(declarations[rejected.index].to_string());
            }
            missing.len() <= MAX_NAMED && down.allows(rejected)
        };
        let rejected = walk(&self.connection, declarations, Intent::Check, goes_on).await?;
        if let Some(rejected) = rejected.into_iter().find(|rejected| !down.allows(rejected)) {
            return Err(rejected.error);
        }
        if missing.is_empty() {
            return Ok(());
        }
        let more = if missing.len() > MAX_NAMED { " and more" } else { "" };
        missing.truncate(MAX_NAMED);
        let hosts = &self.connection.broker_info().hosts;
        let what = format!("RabbitMQ at {hosts} lacks {}{more}", missing.join(", "));
        Err(Error::new(ErrorKind::Config, what)
            .remedy("declare them, or set `topology` to \"declare\"")
            .operation("declare"))
    }
}

/// Says what to do about a queue whose node does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inaccessible {
    IsAnError,
    /// It works again with its node.
    IsLeftOut,
}

impl Inaccessible {
    /// Whether the others are declared all the same. A missing object is tried again.
    fn allows(self, rejected: &Rejected) -> bool {
        rejected.refusal == Refusal::NotFound || self.is_left_out(rejected)
    }

    fn is_left_out(self, rejected: &Rejected) -> bool {
        self == Self::IsLeftOut && rejected.refusal == Refusal::Inaccessible
    }
}
