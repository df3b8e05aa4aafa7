//! The store of one trial, with names of its own and its clock.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Capabilities, Checked, Clock, Due, Entropy, JobKey, LeasedJob, Limits, NewJob, OnConflict,
    QueueName, SystemClock, Timestamp,
};
use futures_util::future::BoxFuture;

use super::client::{Client, SHORT_LEASE};
use super::failure::TrialResult;
use super::under_test::{BackendUnderTest, StoreClock, StoreUnderTest};

/// A delay that trials wait for; short, because on a real clock it takes real time.
pub(super) const SOON: Duration = Duration::from_millis(40);
/// A delay that does not end within a trial.
pub(super) const LATER: Duration = Duration::from_secs(3_600);
/// The longest lease that [`TrialStore::while_leased`] tries: long enough for a few calls on any
/// machine.
const MAX_SHORT_LEASE: Duration = SHORT_LEASE.saturating_mul(16);

/// The store of one trial, and a client of it by `Deref`.
#[derive(Debug)]
pub(super) struct TrialStore {
    store: Box<dyn StoreUnderTest>,
    client: Client,
    clock: StoreClock,
    entropy: Entropy,
    /// Prefix of this trial's queue names.
    namespace: String,
    /// Number of queue names given out.
    queues: AtomicU64,
}

impl TrialStore {
    pub(super) async fn open(subject: &dyn BackendUnderTest) -> TrialResult<Self> {
        let store = subject.prepare().await?;
        let client = Client::new(store.open().await?);
        let clock = store.clock();
        let entropy = Entropy::from_os();
        let namespace = format!("suite-{:016x}", entropy.bits() >> 64);
        Ok(Self { store, client, clock, entropy, namespace, queues: AtomicU64::new(0) })
    }

    /// A clone of the client, for another task.
    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Another client of the same store, as in another process. Requires a shared store.
    pub(super) async fn second_client(&self) -> TrialResult<Client> {
        Ok(Client::new(self.store.open().await?))
    }

    /// Drops the client as in a crash, and opens the store again. Requires a durable store.
    pub(super) async fn crash(self) -> TrialResult<Self> {
        let Self { store, client, clock, entropy, namespace, queues } = self;
        drop(client);
        let client = Client::new(store.open().await?);
        Ok(Self { store, client, clock, entropy, namespace, queues })
    }

    /// The backend behind the checks of [`Checked`], as applications use it.
    pub(super) fn checked(&self) -> Client {
        let clock: Arc<dyn Clock> = match &self.clock {
            StoreClock::Virtual(clock) => Arc::clone(clock) as Arc<dyn Clock>,
            StoreClock::Real => Arc::new(SystemClock),
        };
        Client::new(Arc::new(Checked::new(self.backend().clone(), Limits::default(), clock)))
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.backend().capabilities()
    }

    pub(super) fn clock(&self) -> &StoreClock {
        &self.clock
    }

    /// A queue that no other trial uses.
    pub(super) fn queue(&self) -> QueueName {
        self.queue_named("q")
    }

    /// A queue that no other trial uses, with these characters in its name.
    pub(super) fn queue_named(&self, name: &str) -> QueueName {
        let number = self.queues.fetch_add(1, Ordering::Relaxed);
        QueueName::new(format!("{}-{number}-{name}", self.namespace)).expect("a valid queue name")
    }

    /// A job with a payload that no other job has.
    pub(super) fn job(&self, queue: &QueueName, due: impl Into<Due>) -> NewJob {
        // The time within the id does not matter; this machine's clock saves a call to the store.
        let id = self.entropy.job_id(SystemClock.now());
        NewJob::new(id, queue.clone(), due, Bytes::from(id.to_string()))
    }

    /// A job with a key.
    pub(super) fn keyed(
        &self,
        queue: &QueueName,
        due: impl Into<Due>,
        key: &str,
        on_conflict: OnConflict,
    ) -> NewJob {
        self.job(queue, due).key(self::key(key)).on_conflict(on_conflict)
    }

    /// Leases a new job for a short time and runs a check while the lease is live. Returns the
    /// lease.
    ///
    /// If the check fails after the lease has ended, the machine may have been too slow: the check
    /// is repeated with another job and a longer lease. A check that renews the lease must update
    /// `leased_until`.
    pub(super) async fn while_leased(
        &self,
        check: impl for<'a> Fn(&'a Self, &'a mut ShortLease) -> BoxFuture<'a, TrialResult>,
    ) -> TrialResult<ShortLease> {
        let mut lease_for = SHORT_LEASE;
        loop {
            let queue = self.queue();
            self.create(self.job(&queue, Due::NOW)).await?;
            let leased = self.lease_one_for(&queue, lease_for).await?;
            let mut held = ShortLease { queue, leased, lease_for };
            let Err(failure) = check(self, &mut held).await else {
                return Ok(held);
            };
            if lease_for >= MAX_SHORT_LEASE || self.now().await? < held.leased.leased_until {
                return Err(failure);
            }
            lease_for *= 4;
        }
    }

    /// The store's clock.
    pub(super) async fn now(&self) -> TrialResult<Timestamp> {
        Ok(self.backend().now().await?)
    }

    /// Waits until the store's clock shows `until` or later; a virtual clock is set to it.
    pub(super) async fn wait_until(&self, until: Timestamp) -> TrialResult {
        match &self.clock {
            StoreClock::Virtual(clock) => {
                if clock.now() < until {
                    clock.set(until);
                }
            }
            StoreClock::Real => loop {
                let now = self.now().await?;
                if now >= until {
                    break;
                }
                tokio::time::sleep(until.since(now)).await;
            },
        }
        Ok(())
    }

    /// Waits until this process's clock shows `until` or later, for a store that is closed and
    /// cannot be asked for its time; a virtual clock is set to it.
    pub(super) async fn wait_until_while_closed(&self, until: Timestamp) {
        match &self.clock {
            StoreClock::Virtual(clock) => clock.set(clock.now().max(until)),
            StoreClock::Real => SystemClock.sleep_until(until).await,
        }
    }

    /// Waits until this delay has passed on the store's clock.
    pub(super) async fn wait_for(&self, delay: Duration) -> TrialResult {
        let until = self.now().await? + delay;
        self.wait_until(until).await
    }
}

/// The only job of a queue, leased for a short time.
#[derive(Debug)]
pub(super) struct ShortLease {
    pub(super) queue: QueueName,
    pub(super) leased: LeasedJob,
    pub(super) lease_for: Duration,
}

impl Deref for TrialStore {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// A valid key.
pub(super) fn key(key: &str) -> JobKey {
    JobKey::new(key).expect("a valid key")
}
