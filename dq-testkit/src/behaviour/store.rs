//! The store of one trial, with its own names and clock, and the set-up that trials share.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use dq_core::config::Environment;
use dq_core::{
    Capabilities, Checked, Clock, Due, Entropy, Headers, HistoryLimit, HistoryLimits, JobId,
    JobKey, JobState, JobView, LeasedJob, Limits, NewJob, OnConflict, Operation, QueueName,
    QueueStats, Receipt, SystemClock, Timestamp, Verdict,
};
use futures_util::future::BoxFuture;

use super::client::{BRIEF_LEASE, Client, SHORT_LEASE, next_step, want};
use super::failure::{TrialResult, ensure};
use super::under_test::{BackendUnderTest, StoreClock, StoreUnderTest};

/// A delay that trials wait for. It is short, because on a real clock it takes real time.
pub(super) const SOON: Duration = Duration::from_millis(40);
/// A delay that does not pass within a trial.
pub(super) const LATER: Duration = Duration::from_secs(3_600);
/// Every state except `Ended`, which requires a history.
pub(super) const STORED_STATES: [JobState; 4] =
    [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Dead];
/// A lease that lasts for a few calls on any machine.
const MAX_SHORT_LEASE: Duration = SHORT_LEASE.saturating_mul(16);

#[derive(Debug)]
pub(super) struct TrialStore {
    store: Box<dyn StoreUnderTest>,
    client: Client,
    environment: Environment,
    clock: StoreClock,
    namespace: String,
    queues: AtomicU64,
}

impl TrialStore {
    pub(super) async fn open(subject: &dyn BackendUnderTest) -> TrialResult<Self> {
        let store = subject.prepare().await?;
        let clock = store.clock();
        let entropy = Arc::new(Entropy::from_os());
        let namespace = format!("suite-{:016x}", entropy.bits() >> 64);
        let environment = Environment::new(clock.of_process(), Arc::clone(&entropy))
            .history(history_limits(&namespace));
        let client = Client::new(store.open(&environment).await?);
        Ok(Self { store, client, environment, clock, namespace, queues: AtomicU64::new(0) })
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Opens the store as another process does. Requires a shared store.
    pub(super) async fn second_client(&self) -> TrialResult<Client> {
        Ok(Client::new(self.store.open(&self.environment).await?))
    }

    /// Returns two clients for concurrent calls. On a shared store they stand for two processes.
    pub(super) async fn two_clients(&self) -> TrialResult<[Client; 2]> {
        let second = match self.capabilities().shared {
            true => self.second_client().await?,
            false => self.client(),
        };
        Ok([self.client(), second])
    }

    /// Drops the client and opens the store again. Requires a durable store.
    pub(super) async fn crash(self) -> TrialResult<Self> {
        let Self { store, client, environment, clock, namespace, queues } = self;
        drop(client);
        let client = Client::new(store.open(&environment).await?);
        Ok(Self { store, client, environment, clock, namespace, queues })
    }

    /// The client behind the checks of input that applications call.
    pub(super) fn checked(&self) -> Client {
        let clock = self.clock.of_process();
        Client::new(Arc::new(Checked::new(self.backend().clone(), Limits::default(), clock)))
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        self.backend().capabilities()
    }

    pub(super) fn queue(&self) -> QueueName {
        self.queue_named("q")
    }

    /// The trial's queue with this limit for its history. It is the same at each call.
    pub(super) fn queue_with(&self, limit: Limit) -> QueueName {
        queue_with(&self.namespace, limit)
    }

    pub(super) fn name(&self, end: &str) -> String {
        format!("{}-{end}", self.namespace)
    }

    pub(super) fn queue_named(&self, name: &str) -> QueueName {
        let number = self.queues.fetch_add(1, Ordering::Relaxed);
        QueueName::new(format!("{}-{number}-{name}", self.namespace)).expect("a valid queue name")
    }

    pub(super) fn job(&self, queue: &QueueName, due: impl Into<Due>) -> NewJob {
        // The time in the id does not matter, and this machine's clock saves a call.
        let id = self.environment.entropy.job_id(SystemClock.now());
        NewJob::new(id, queue.clone(), due, Bytes::from(id.to_string()))
    }

    /// A job that uses every field: headers, a limit of attempts and, if the store has keys, the
    /// key `k`.
    pub(super) fn full_job(&self, queue: &QueueName, due: impl Into<Due>) -> NewJob {
        let headers = Headers::from_iter([(Headers::CONTENT_TYPE, "text/plain")]);
        let mut job = self.job(queue, due).headers(headers).max_attempts(7);
        job.key = self.capabilities().keys.then(|| key("k"));
        job
    }

    /// The verdicts after which a job runs again. They delay it until `due`, except that a release
    /// keeps the old due time.
    pub(super) fn verdicts_to_run_again(&self, due: impl Into<Due>) -> Vec<Verdict> {
        let due = due.into();
        let mut verdicts = vec![
            Verdict::retry(due, "a reason"),
            Verdict::Snooze(due),
            Verdict::Release { started: true },
            Verdict::Release { started: false },
        ];
        if self.capabilities().again {
            verdicts.push(next_step(due, "next"));
        }
        verdicts
    }

    pub(super) async fn create_many(
        &self,
        queue: &QueueName,
        count: usize,
        due: impl Into<Due>,
    ) -> TrialResult {
        let due = due.into();
        self.schedule_all((0..count).map(|_| self.job(queue, due)).collect()).await?;
        Ok(())
    }

    /// Stores a due job and leases it. No other job of the queue may be due.
    pub(super) async fn start(&self, queue: &QueueName) -> TrialResult<LeasedJob> {
        self.start_job(self.job(queue, Due::NOW)).await
    }

    pub(super) async fn start_job(&self, job: NewJob) -> TrialResult<LeasedJob> {
        let queue = job.queue.clone();
        self.create(job).await?;
        self.lease_one(&queue).await
    }

    pub(super) async fn run_job(&self, job: NewJob, verdict: Verdict) -> TrialResult<Receipt> {
        let queue = job.queue.clone();
        let receipt = self.create(job).await?;
        let leased = self.lease_one(&queue).await?;
        self.settle_accepted(&leased, verdict).await?;
        Ok(receipt)
    }

    /// Stores a due job, and leases it until its lease expires.
    pub(super) async fn lose_job(&self, job: NewJob) -> TrialResult<LeasedJob> {
        let queue = job.queue.clone();
        self.create(job).await?;
        self.lose_lease(&queue).await
    }

    /// Leases the queue's due job until its lease expires.
    pub(super) async fn lose_lease(&self, queue: &QueueName) -> TrialResult<LeasedJob> {
        let lost = self.lease_one_for(queue, BRIEF_LEASE).await?;
        self.wait_until(lost.leased_until).await?;
        Ok(lost)
    }

    pub(super) async fn snapshot(
        &self,
        queue: &QueueName,
    ) -> TrialResult<(QueueStats, Vec<JobView>)> {
        let (can, mut jobs) = (self.capabilities(), Vec::new());
        if can.browse {
            let ended = can.history.then_some(JobState::Ended);
            for state in STORED_STATES.into_iter().chain(ended) {
                jobs.extend(self.list(queue, state, 100).await?);
            }
        }
        Ok((self.stats(queue).await?, jobs))
    }

    pub(super) async fn dead_ids(&self, queue: &QueueName) -> TrialResult<Vec<JobId>> {
        self.listed(queue, JobState::Dead, 1_000).await
    }

    /// Replays all dead jobs of a queue, which are then due at once.
    pub(super) async fn replay_all(&self, queue: &QueueName) -> TrialResult<u64> {
        let mut replayed = 0;
        for jobs in self.dead_ids(queue).await?.chunks(1_000) {
            replayed += self.operate(Operation::Replay { queue, jobs, due: Due::NOW }).await?;
        }
        Ok(replayed)
    }

    pub(super) fn keyed(
        &self,
        queue: &QueueName,
        due: impl Into<Due>,
        key: &str,
        on_conflict: OnConflict,
    ) -> NewJob {
        self.job(queue, due).key(self::key(key)).on_conflict(on_conflict)
    }

    /// Runs `check` while a new job is leased, and returns the lease.
    ///
    /// If the check fails after the lease expired, the machine may be too slow. It then runs again
    /// with another job and a longer lease. A check that renews the lease must update
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

    /// Leases the queue's only job after another client has lost its lease.
    ///
    /// A store without its own clock measures a lease in each process, from the moment when that
    /// process sees it, so the lease may expire later than its holder says. The job may also be
    /// reserved for another process for some time. An empty claim tells until when.
    pub(super) async fn lease_lost_one(
        &self,
        client: &Client,
        queue: &QueueName,
    ) -> TrialResult<LeasedJob> {
        for max in [0, 1, 1] {
            let claimed = client.claim(&[want(queue, max)]).await?;
            if let Some(leased) = claimed.jobs.into_iter().next() {
                return Ok(leased);
            }
            if let Some(next_due) = claimed.next_due {
                self.wait_until(next_due).await?;
            }
        }
        client.lease_one(queue).await
    }

    pub(super) async fn now(&self) -> TrialResult<Timestamp> {
        Ok(self.backend().now().await?)
    }

    /// Waits until the store's clock shows this time. A virtual clock is set to it.
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

    /// Waits on this process's clock, because a closed store cannot tell the time.
    pub(super) async fn wait_until_while_closed(&self, until: Timestamp) {
        match &self.clock {
            StoreClock::Virtual(clock) => clock.set(clock.now().max(until)),
            StoreClock::Real => SystemClock.sleep_until(until).await,
        }
    }

    pub(super) async fn wait_for(&self, delay: Duration) -> TrialResult {
        let until = self.now().await? + delay;
        self.wait_until(until).await
    }
}

fn history_limits(namespace: &str) -> HistoryLimits {
    let mut limits = HistoryLimits::all(HistoryLimit::default());
    for limit in [Limit::Few, Limit::Brief, Limit::Off] {
        limits.queues.insert(queue_with(namespace, limit), limit.limit());
    }
    limits
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Limit {
    /// At most [`FEW`] jobs.
    Few,
    /// Jobs that ended at most [`BRIEF`] ago.
    Brief,
    Off,
}

pub(super) const FEW: u32 = 3;
pub(super) const BRIEF: Duration = Duration::from_millis(300);

impl Limit {
    fn limit(self) -> HistoryLimit {
        match self {
            Self::Few => HistoryLimit::new(FEW, LATER),
            Self::Brief => HistoryLimit::new(1_000, BRIEF),
            Self::Off => HistoryLimit::OFF,
        }
    }
}

fn queue_with(namespace: &str, limit: Limit) -> QueueName {
    QueueName::new(format!("{namespace}-{limit:?}")).expect("a valid queue name")
}

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

pub(super) fn key(key: &str) -> JobKey {
    JobKey::new(key).expect("a valid key")
}

pub(super) fn ensure_payload(leased: &LeasedJob, payload: &Bytes) -> TrialResult {
    let returned = &leased.job.payload;
    ensure!(
        returned == payload,
        "a payload of {} bytes is unchanged; {} bytes were returned",
        payload.len(),
        returned.len()
    );
    Ok(())
}
