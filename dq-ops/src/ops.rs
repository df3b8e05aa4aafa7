//! The entry point: one [`Ops`] for a client, one [`Session`] for each request.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dq_core::{Backend, Capabilities, Dq, Error, QueueName, Timestamp};

use crate::actor::{Actor, Role};
use crate::audit::{Audit, AuditEntry, Pending};
use crate::error::{OpsError, Result};
use crate::redact::{JobContent, Redaction};
use crate::watch::Watch;

/// Read models and actions over a [`Dq`]. Cheap to clone; all clones share the audit and the past.
#[derive(Debug, Clone)]
pub struct Ops {
    dq: Dq,
    redaction: Redaction,
    audit: Audit,
    watch: Watch,
    /// Held by the simulation that runs.
    simulation: Arc<AtomicBool>,
}

impl Ops {
    /// Creates it without redaction, with the audit in memory and in the log.
    #[must_use]
    pub fn new(dq: Dq) -> Self {
        Self::builder(dq).build()
    }

    /// A builder, for redaction and for an audit of your own.
    #[must_use]
    pub fn builder(dq: Dq) -> OpsBuilder {
        let (redaction, audit, watch, simulation) = Default::default();
        OpsBuilder { ops: Self { dq, redaction, audit, watch, simulation } }
    }

    /// The client.
    #[must_use]
    pub fn dq(&self) -> &Dq {
        &self.dq
    }

    /// What the store can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.dq.backend().capabilities()
    }

    /// What the overviews have seen so far.
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Whether a simulation runs.
    pub(crate) fn simulation(&self) -> &Arc<AtomicBool> {
        &self.simulation
    }

    /// The requests of an actor. Whether the actor is who it says is the caller's concern.
    #[must_use]
    pub fn session(&self, actor: Actor) -> Session {
        Session { ops: self.clone(), actor }
    }
}

/// Builds an [`Ops`]; made by [`Ops::builder`].
#[derive(Debug)]
pub struct OpsBuilder {
    ops: Ops,
}

impl OpsBuilder {
    /// Sets a function that removes what nobody may see from payloads, headers and errors, before
    /// they are shown, grouped or searched. With such a function, payloads of the framework's own
    /// jobs are not shown at all, since they contain those of other queues. Filters by error text
    /// of a bulk, and of its count, compare what is stored.
    ///
    /// ```
    /// # use dq_core::Dq;
    /// # use dq_ops::Ops;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> dq_core::Result<()> {
    /// # let dq = Dq::connect("memory:").await?;
    /// let ops = Ops::builder(dq)
    ///     .redact(|content| {
    ///         if content.queue.as_str() == "SEND_MAIL" {
    ///             content.payload = "\"hidden\"".into();
    ///         }
    ///         content.headers.remove("authorization");
    ///     })
    ///     .build();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn redact(mut self, redact: impl Fn(&mut JobContent) + Send + Sync + 'static) -> Self {
        self.ops.redaction = Redaction::new(redact);
        self
    }

    /// Sets a function that receives each entry of the audit, such as to store it. It is called in
    /// the request: it must be quick and not block.
    #[must_use]
    pub fn audit_to(mut self, sink: impl Fn(&AuditEntry) + Send + Sync + 'static) -> Self {
        self.ops.audit = Audit::with_sink(sink);
        self
    }

    /// Creates the [`Ops`].
    #[must_use]
    pub fn build(self) -> Ops {
        self.ops
    }
}

/// The requests of one actor; made by [`Ops::session`].
#[derive(Debug, Clone)]
pub struct Session {
    pub(crate) ops: Ops,
    pub(crate) actor: Actor,
}

impl Session {
    /// What the session was made from.
    #[must_use]
    pub fn ops(&self) -> &Ops {
        &self.ops
    }

    /// Who makes the requests.
    #[must_use]
    pub fn actor(&self) -> &Actor {
        &self.actor
    }

    /// Whether the actor has at least this role.
    #[must_use]
    pub fn may(&self, role: Role) -> bool {
        self.actor.role() >= role
    }

    /// The current time of the store.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached.
    pub async fn now(&self) -> Result<Timestamp> {
        Ok(self.ops.dq.backend().now().await?)
    }

    /// The last writes, the latest first; `limit` is clamped to 1 to 1,000. They are those of this
    /// [`Ops`] and its clones; the log has all of them, under the target `dq::audit`.
    ///
    /// # Errors
    /// `Forbidden` without the role admin.
    pub fn audit(&self, limit: usize) -> Result<Vec<AuditEntry>> {
        self.require(Role::Admin)?;
        Ok(self.ops.audit.last(limit.clamp(1, Audit::KEPT)))
    }

    pub(crate) fn require(&self, needs: Role) -> Result<()> {
        if self.may(needs) {
            return Ok(());
        }
        Err(OpsError::Forbidden { needs, has: self.actor.role() })
    }

    pub(crate) fn redaction(&self) -> &Redaction {
        &self.ops.redaction
    }

    /// Begins an entry of the audit.
    pub(crate) fn begin(
        &self,
        action: &str,
        queue: impl AsRef<str>,
        target: Option<String>,
    ) -> Pending {
        self.ops.audit.begin(&self.actor, action, queue.as_ref(), target)
    }

    /// Checks that the actor may change a queue: neither its role nor the queue forbids it.
    pub(crate) fn may_change(&self, queue: &QueueName, needs: Role) -> Result<()> {
        self.require(needs)?;
        if queue.is_reserved() {
            return Err(Error::invalid(format!("queue {queue} belongs to the framework"))
                .remedy("its jobs are changed by the features that use it")
                .into());
        }
        Ok(())
    }
}
