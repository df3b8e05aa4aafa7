//! What a trial stands on: a store, a handle, names of its own, and time.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Capabilities, Checked, Clock, Due, Entropy, Headers, JobKey, LeasedJob, Limits, NewJob,
    OnConflict, QueueName, SystemClock, Timestamp,
};
use futures_util::future::BoxFuture;

use super::failure::Passed;
use super::handle::{Handle, SHORT_LEASE};
use super::subject::{Store, Subject, Time};

/// A delay that is waited for. Short, because on a real clock it is.
pub(super) const SOON: Duration = Duration::from_millis(40);
/// A delay that never ends within a trial.
pub(super) const LATER: Duration = Duration::from_secs(3_600);
/// A lease that is long enough for a few calls on any machine.
const LONGEST_HOLD: Duration = SHORT_LEASE.saturating_mul(16);

/// What a trial stands on. Calls go to its own handle by `Deref`.
#[derive(Debug)]
pub(super) struct Stand {
    store: Box<dyn Store>,
    handle: Handle,
    time: Time,
    entropy: Entropy,
    namespace: String,
    queues: AtomicU64,
}

impl Stand {
    pub(super) async fn open(subject: &dyn Subject) -> Passed<Self> {
        let store = subject.prepare().await?;
        let handle = Handle::new(store.open().await?);
        let time = store.time();
        let entropy = Entropy::from_os();
        let namespace = format!("suite-{:016x}", entropy.bits() >> 64);
        Ok(Self { store, handle, time, entropy, namespace, queues: AtomicU64::new(0) })
    }

    /// The handle, for a task of its own.
    pub(super) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Another handle on the same store, as of another process. Needs a shared store.
    pub(super) async fn second(&self) -> Passed<Handle> {
        Ok(Handle::new(self.store.open().await?))
    }

    /// Drops the handle with everything that it had in hand, and opens the store again. Needs a
    /// durable store.
    pub(super) async fn crash(self) -> Passed<Self> {
        let Self { store, handle, time, entropy, namespace, queues } = self;
        drop(handle);
        let handle = Handle::new(store.open().await?);
        Ok(Self { store, handle, time, entropy, namespace, queues })
    }

    /// The backend behind the checks that every application has before it.
    pub(super) fn checked(&self) -> Handle {
        let clock: Arc<dyn Clock> = match &self.time {
            Time::Virtual(clock) => Arc::clone(clock) as Arc<dyn Clock>,
            Time::Real => Arc::new(SystemClock),
        };
        Handle::new(Arc::new(Checked::new(self.backend().clone(), Limits::default(), clock)))
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.backend().capabilities()
    }

    pub(super) fn time(&self) -> &Time {
        &self.time
    }

    /// A queue that nobody else uses.
    pub(super) fn queue(&self) -> QueueName {
        self.queue_named("q")
    }

    /// A queue that nobody else uses, with these characters in its name.
    pub(super) fn queue_named(&self, name: &str) -> QueueName {
        let number = self.queues.fetch_add(1, Ordering::Relaxed);
        QueueName::new(format!("{}-{number}-{name}", self.namespace)).expect("a valid queue name")
    }

    /// A job with a payload that no other job has.
    pub(super) fn job(&self, queue: &QueueName, due: impl Into<Due>) -> NewJob {
        // The id need not tell the time; the machine's clock saves a call to the store.
        let id = self.entropy.job_id(SystemClock.now());
        NewJob {
            id,
            queue: queue.clone(),
            key: None,
            on_conflict: OnConflict::Keep,
            due: due.into(),
            payload: Bytes::from(id.to_string()),
            headers: Headers::new(),
            max_attempts: None,
        }
    }

    /// A job with a key.
    pub(super) fn keyed(
        &self,
        queue: &QueueName,
        due: impl Into<Due>,
        key: &str,
        on_conflict: OnConflict,
    ) -> NewJob {
        NewJob { key: Some(self::key(key)), on_conflict, ..self.job(queue, due) }
    }

    /// Leases a new job for a short time, and checks what is true while the lease lasts. A check
    /// that fails once the lease has ended says nothing of the backend: it is repeated with another
    /// job and a longer lease. A check that renews the lease sets `leased_until`.
    pub(super) async fn hold(
        &self,
        check: impl for<'a> Fn(&'a Self, &'a mut Held) -> BoxFuture<'a, Passed>,
    ) -> Passed<Held> {
        let mut lease_for = SHORT_LEASE;
        loop {
            let queue = self.queue();
            self.create(self.job(&queue, Due::NOW)).await?;
            let taken = self.take_one_for(&queue, lease_for).await?;
            let mut held = Held { queue, taken, lease_for };
            let Err(failure) = check(self, &mut held).await else {
                return Ok(held);
            };
            if lease_for >= LONGEST_HOLD || self.now().await? < held.taken.leased_until {
                return Err(failure);
            }
            lease_for *= 4;
        }
    }

    /// The store's clock.
    pub(super) async fn now(&self) -> Passed<Timestamp> {
        Ok(self.backend().now().await?)
    }

    /// Ends when the store's clock shows `until` or later.
    pub(super) async fn reach(&self, until: Timestamp) -> Passed {
        match &self.time {
            Time::Virtual(clock) => {
                if clock.now() < until {
                    clock.set(until);
                }
            }
            Time::Real => loop {
                let now = self.now().await?;
                if now >= until {
                    break;
                }
                tokio::time::sleep(until.since(now)).await;
            },
        }
        Ok(())
    }

    /// The same by this process's clock, when there is no store to ask.
    pub(super) async fn reach_with_the_store_closed(&self, until: Timestamp) {
        match &self.time {
            Time::Virtual(clock) => clock.set(clock.now().max(until)),
            Time::Real => SystemClock.sleep_until(until).await,
        }
    }

    /// Ends when this much has passed on the store's clock.
    pub(super) async fn pass(&self, delay: Duration) -> Passed {
        let until = self.now().await? + delay;
        self.reach(until).await
    }
}

/// A job that is leased for a short time, the only one of its queue.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) queue: QueueName,
    pub(super) taken: LeasedJob,
    pub(super) lease_for: Duration,
}

impl Deref for Stand {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

/// A valid key.
pub(super) fn key(key: &str) -> JobKey {
    JobKey::new(key).expect("a valid key")
}
