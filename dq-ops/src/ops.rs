//! The entry point: one [`Ops`] per client, one [`Session`] per request.

use std::sync::Arc;
use std::time::Instant;

use dq_core::{Backend, Capabilities, Dq, Error, Observer, PullServer, QueueName, Timestamp};
use tokio::sync::Mutex;

use crate::actor::{Actor, Role};
use crate::audit::{Audit, AuditEntry};
use crate::error::{OpsError, Result};
use crate::lease::Work;
use crate::redact::{JobContent, Redaction};
use crate::watch::{Past, PastWindow, Watch};

/// Read models and actions over a [`Dq`].
///
/// Clones are cheap and share the audit and the past.
#[derive(Debug, Clone)]
pub struct Ops {
    dq: Dq,
    redaction: Redaction,
    audit: Audit,
    pub(crate) watch: Watch,
    /// The running simulation holds this lock.
    pub(crate) simulation: Arc<Mutex<()>>,
    pub(crate) work: Work,
}

impl Ops {
    /// Creates an `Ops` without redaction, with the audit in memory and in the log.
    #[must_use]
    pub fn new(dq: Dq) -> Self {
        Self::builder(dq).build()
    }

    /// Returns a builder for your own redaction and audit.
    #[must_use]
    pub fn builder(dq: Dq) -> OpsBuilder {
        let (redaction, audit, watch, simulation, work) = Default::default();
        OpsBuilder { ops: Self { dq, redaction, audit, watch, simulation, work } }
    }

    /// Returns the client.
    #[must_use]
    pub fn dq(&self) -> &Dq {
        &self.dq
    }

    /// Returns the store's capabilities.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.dq.backend().capabilities()
    }

    /// Answers all workers that wait for jobs, and refuses later claims. Call it when your server
    /// stops. Workers can still renew and settle leases.
    pub async fn stop_work(&self) {
        self.pull().stop().await;
    }

    pub(crate) fn pull(&self) -> &PullServer {
        self.work.server(&self.dq)
    }

    /// Returns when any session last read an [`overview`](Session::overview).
    #[must_use]
    pub fn last_overview(&self) -> Option<Instant> {
        self.watch.last_reading()
    }

    /// Starts a session for an actor. You authenticate the actor.
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
    /// Redacts payloads, headers and errors before they are shown, grouped or searched.
    ///
    /// With a redaction, payloads in the framework's own jobs are never shown, because they contain
    /// payloads from other queues. Bulk actions and their counts still filter by the stored error
    /// text.
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

    /// Sends each audit entry to your function, for example to store it.
    ///
    /// It runs inside the request, so keep it quick and non-blocking.
    #[must_use]
    pub fn audit_to(mut self, sink: impl Fn(&AuditEntry) + Send + Sync + 'static) -> Self {
        self.ops.audit = Audit::with_sink(sink);
        self
    }

    /// Signs the leases of workers by a key that is made from this secret.
    ///
    /// Give all servers of a store the same one: then a lease counts at each, also after a restart.
    /// Without it, leases end with this `Ops`.
    #[must_use]
    pub fn lease_secret(mut self, secret: &[u8]) -> Self {
        self.ops.work.set_secret(secret);
        self
    }

    /// Adds an observer of the jobs that workers claim, as [`PullServer::observed`] does.
    #[must_use]
    pub fn work_observer(mut self, observer: impl Observer) -> Self {
        self.ops.work.observers.push(Arc::new(observer));
        self
    }

    /// Creates the [`Ops`].
    #[must_use]
    pub fn build(self) -> Ops {
        self.ops
    }
}

/// One actor's requests; made by [`Ops::session`].
///
/// Each call can fail with `Forbidden` below its role, `Unsupported` if the store cannot do it, and
/// `Unavailable` if the store cannot be reached.
#[derive(Debug, Clone)]
pub struct Session {
    pub(crate) ops: Ops,
    pub(crate) actor: Actor,
}

impl Session {
    /// Returns the session's [`Ops`].
    #[must_use]
    pub fn ops(&self) -> &Ops {
        &self.ops
    }

    /// Returns the actor.
    #[must_use]
    pub fn actor(&self) -> &Actor {
        &self.actor
    }

    /// Returns whether the actor has at least this role.
    #[must_use]
    pub fn may(&self, role: Role) -> bool {
        self.actor.role() >= role
    }

    /// Returns the store's current time.
    pub async fn now(&self) -> Result<Timestamp> {
        Ok(self.ops.dq.backend().now().await?)
    }

    /// Returns the last hour or day of a queue or of all, without calling the store.
    ///
    /// It covers the [overviews](Self::overview) that this process has read.
    #[must_use]
    pub fn past(&self, queue: Option<&QueueName>, window: PastWindow, now: Timestamp) -> Past {
        self.ops.watch.past(queue, window, now)
    }

    /// Returns the last writes of this [`Ops`] and its clones, latest first.
    ///
    /// `limit` is clamped to 1 to 1,000. The log has all writes, under the target `dq::audit`.
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

    /// Does a write and records it, also if the caller goes away before its end.
    pub(crate) async fn audited<T>(
        &self,
        action: &str,
        queue: impl AsRef<str>,
        target: Option<String>,
        changed: impl Fn(&T) -> u64,
        write: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let audit = self.ops.audit.begin(&self.actor, action, queue.as_ref(), target);
        audit.end(write.await, changed)
    }

    /// Checks the actor's role, and protects the framework's queues.
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
