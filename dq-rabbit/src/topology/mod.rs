//! Declares exchanges, queues and bindings under one prefix, or checks that they exist.
//!
//! Jobs depend on the objects of the log only. These are declared first, and again by the tasks of
//! the log when the broker answers that one is missing. Everything else delivers messages. It is
//! declared when the backend connects; afterwards, [`keep`](Topology::keep) checks in the
//! background that it exists whenever the connection was replaced or somebody misses something,
//! and declares only what is missing. So a process works while the rest cannot be declared: a
//! classic queue is not available without its node, and the right to configure may have been
//! revoked.

mod declaration;
mod objects;
mod walk;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{Error, QueueName, Result};
use lapin::types::ShortString;
use tokio::sync::Notify;

use self::declaration::Declaration;
use self::objects::Objects;
use self::walk::{Intent, Rejected, walk};
use crate::config::{RabbitConfig, TopologyMode};
use crate::connect::AmqpConnection;
use crate::error::{self, Permission, Refusal};
use crate::generation::Generation;
use crate::ladder::Ladder;
use crate::names::{ObjectNames, Topic};

/// Maximum number of missing objects that an error names.
const MAX_NAMED: usize = 8;

/// How long to wait before each further attempt to declare what the broker did not find: while
/// several processes declare one queue, it is known before it has started.
const NOT_FOUND_PAUSES: [Duration; 3] =
    [Duration::from_millis(200), Duration::from_millis(600), Duration::from_millis(1800)];

/// How long to wait after an attempt to restore what is missing: at least, and after a failure.
const RESTORE_PAUSE: Duration = Duration::from_secs(1);
const FAILED_RESTORE_PAUSE: Duration = Duration::from_secs(30);

/// Declares exchanges, queues and bindings, or checks that they exist.
pub(crate) struct Topology {
    connection: Arc<AmqpConnection>,
    objects: Objects,
    ladder: Ladder,
    /// Job queues whose ready queue exists.
    ready: Mutex<HashSet<QueueName>>,
    /// Held while objects are restored.
    restoring: tokio::sync::Mutex<()>,
    /// Number of completed restorations.
    restored: AtomicU64,
    /// Notified when something may be missing.
    missed: Notify,
    /// Why the last attempt to declare what is missing failed.
    failure: Mutex<Option<Error>>,
}

impl Topology {
    /// The topology for these settings; declares nothing yet.
    pub(crate) fn new(connection: Arc<AmqpConnection>, config: &RabbitConfig) -> Self {
        let objects = Objects::new(config);
        let ladder = Ladder::new(&objects.names, config.ladder);
        Self {
            connection,
            objects,
            ladder,
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

    /// Routes through this topology.
    pub(crate) fn ladder(&self) -> &Ladder {
        &self.ladder
    }

    /// Why what is missing could not be declared.
    pub(crate) fn failure(&self) -> Option<String> {
        lock(&self.failure).as_ref().map(ToString::to_string)
    }

    /// Declares what the log needs, before anything else; with [`TopologyMode::Passive`], checks that
    /// everything exists.
    pub(crate) async fn prepare(&self) -> Result<()> {
        if self.objects.mode != TopologyMode::Passive {
            return self.declare_log().await;
        }
        let all = self.objects.log().into_iter().chain(self.objects.messages()).collect();
        self.declare_missing(all, Inaccessible::IsLeftOut).await
    }

    /// Declares what the log needs besides its generations.
    pub(crate) async fn declare_log(&self) -> Result<()> {
        self.declare(self.objects.log(), Inaccessible::IsAnError).await
    }

    /// Binds this generation of the log, without declaring it: it may have been deleted because it is
    /// not needed any more.
    pub(crate) async fn bind_generation(&self, generation: Generation) -> Result<()> {
        let mut declarations = self.objects.generation(generation);
        declarations.retain(|declaration| !declaration.is_checkable());
        self.declare_all(declarations, Inaccessible::IsAnError).await
    }

    /// Declares a generation of the log, in every mode: generations come and go.
    pub(crate) async fn declare_generation(&self, generation: Generation) -> Result<()> {
        let declarations = self.objects.generation(generation);
        self.declare_all(declarations, Inaccessible::IsAnError).await
    }

    /// Whether this generation of the log exists.
    pub(crate) async fn has_generation(&self, generation: Generation) -> Result<bool> {
        let declarations = self.objects.generation(generation);
        let rejected = walk(&self.connection, &declarations, Intent::Check, |_| true).await?;
        match rejected.into_iter().next() {
            Some(rejected) if rejected.refusal == Refusal::NotFound => Ok(false),
            Some(rejected) => Err(rejected.error),
            None => Ok(true),
        }
    }

    /// Deletes generations of the log, as far as they exist.
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

    /// The routing key of messages for this generation of the log.
    pub(crate) fn routing_key(&self, generation: Generation) -> ShortString {
        objects::routing_key(generation)
    }

    /// Declares everything but what the log needs and the ready queues. What is not available for
    /// now is left out.
    pub(crate) async fn declare_messages(&self) -> Result<()> {
        self.declare(self.objects.messages(), Inaccessible::IsLeftOut).await
    }

    /// Declares the ready queue of a job queue if it does not exist. Asks the broker only once, or
    /// again after [`forget_ready`](Self::forget_ready).
    pub(crate) async fn declare_ready(&self, queue: &QueueName) -> Result<()> {
        if lock(&self.ready).contains(queue) {
            return Ok(());
        }
        let declarations = self.objects.ready_queue(&Topic::of(queue));
        self.declare(declarations, Inaccessible::IsAnError).await?;
        lock(&self.ready).insert(queue.clone());
        Ok(())
    }

    /// The ready queue of this job queue may be missing.
    pub(crate) fn forget_ready(&self, queue: &QueueName) {
        lock(&self.ready).remove(queue);
    }

    /// Something may be missing; [`keep`](Self::keep) looks for it.
    pub(crate) fn report_missing(&self) {
        self.missed.notify_one();
    }

    /// Declares what is missing of everything but the log and the ready queues; forgets which ready
    /// queues exist. Concurrent calls share one attempt.
    pub(crate) async fn restore(&self) -> Result<()> {
        let before = self.restored.load(Ordering::Acquire);
        let _guard = self.restoring.lock().await;
        if self.restored.load(Ordering::Acquire) != before {
            return Ok(());
        }
        lock(&self.ready).clear();
        let messages = self.objects.messages();
        let restored = self.declare_missing(messages, Inaccessible::IsLeftOut).await;
        *lock(&self.failure) = restored.as_ref().err().cloned();
        restored?;
        self.restored.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Restores what is missing whenever it is reported, and when the connection was replaced: the
    /// broker may have lost queues. Never ends.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut generation = self.connection.generation();
        loop {
            tokio::select! {
                () = self.missed.notified() => {}
                () = self.connection.replaced(generation) => {}
            }
            generation = self.connection.generation();
            let mut pause = RESTORE_PAUSE;
            if let Err(error) = self.restore().await {
                tracing::warn!(%error, "jobs run from the log: the rest is incomplete");
                pause = FAILED_RESTORE_PAUSE;
                self.report_missing();
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// As [`declare_all`](Self::declare_all); with [`TopologyMode::Passive`], only checks that the
    /// objects exist.
    async fn declare(&self, declarations: Vec<Declaration>, down: Inaccessible) -> Result<()> {
        if self.objects.mode == TopologyMode::Passive {
            return self.declare_missing(declarations, down).await;
        }
        self.declare_all(declarations, down).await
    }

    /// Declares objects whose settings must be right. Those that exist need no right to declare
    /// them.
    async fn declare_all(
        &self,
        mut declarations: Vec<Declaration>,
        down: Inaccessible,
    ) -> Result<()> {
        let goes_on = |rejected: &Rejected| {
            rejected.refusal == Refusal::NotFound || down.is_left_out(rejected)
        };
        let mut pauses = NOT_FOUND_PAUSES.iter();
        loop {
            let mut rejected =
                walk(&self.connection, &declarations, Intent::Declare, goes_on).await?;
            rejected.retain(|rejected| !down.is_left_out(rejected));
            let Some(last) = rejected.last() else { return Ok(()) };
            if last.refusal == Refusal::Forbidden && declarations[last.index].is_checkable() {
                // Only the right to declare is missing if everything exists.
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

    /// Declares those of these objects that do not exist, and their bindings. With
    /// [`TopologyMode::Passive`], fails with their names instead.
    async fn declare_missing(
        &self,
        declarations: Vec<Declaration>,
        down: Inaccessible,
    ) -> Result<()> {
        let is_passive = self.objects.mode == TopologyMode::Passive;
        let mut found_missing = 0;
        let goes_on = |rejected: &Rejected| match rejected.refusal {
            Refusal::NotFound => {
                found_missing += 1;
                !is_passive || found_missing <= MAX_NAMED
            }
            _ => down.is_left_out(rejected),
        };
        let rejected = walk(&self.connection, &declarations, Intent::Check, goes_on).await?;
        let mut missing = Vec::new();
        for rejected in rejected {
            if rejected.refusal == Refusal::NotFound {
                missing.push(declarations[rejected.index].clone());
            } else if !down.is_left_out(&rejected) {
                return Err(rejected.error);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let names = names_of(&missing);
        if is_passive {
            return Err(error::missing_objects("declare", self.connection.broker_info(), &names));
        }
        tracing::warn!(objects = names, "missing exchanges and queues are declared");
        let binds = |it: &Declaration| missing.iter().any(|object| it.binds(object));
        let bindings: Vec<_> = declarations.into_iter().filter(binds).collect();
        missing.extend(bindings);
        // Boxed, because `declare` calls this.
        Box::pin(self.declare(missing, down)).await
    }
}

/// What to do about a queue that exists on a node that does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inaccessible {
    IsAnError,
    /// It works again when the node runs.
    IsLeftOut,
}

impl Inaccessible {
    fn is_left_out(self, rejected: &Rejected) -> bool {
        self == Self::IsLeftOut && rejected.refusal == Refusal::Inaccessible
    }
}

impl std::fmt::Debug for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Topology").field("objects", &self.objects).finish_non_exhaustive()
    }
}

fn names_of(missing: &[Declaration]) -> String {
    let names: Vec<_> = missing.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let more = if missing.len() > MAX_NAMED { " and more" } else { "" };
    names.join(", ") + more
}
