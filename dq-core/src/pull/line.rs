//! The workers that wait for jobs. Each is a parked future; the claim loops ask for all together.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::lease::PullLease;
use super::workers::Workers;
use crate::backend::{LeasedJob, Renewal, Renewed};
use crate::error::{Error, ErrorKind, Result};
use crate::model::QueueName;
use crate::runner::{BATCH, Demand, Presence, Remote, RemoteQueue, Taken, Takers};
use crate::sync::lock;

/// What one worker waits for.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) worker: String,
    /// How many jobs of each queue.
    pub(super) queues: Vec<(Arc<RemoteQueue>, usize)>,
    /// How many jobs in all.
    pub(super) max: usize,
    /// For how long they are leased; `None` for the queue's setting.
    pub(super) lease: Option<Duration>,
    /// Each store is asked once; otherwise the worker waits until a job is due.
    pub(super) once: bool,
}

#[derive(Debug)]
pub(super) struct Line {
    remote: Arc<Remote>,
    pub(super) workers: Workers,
    state: Mutex<State>,
    /// One per store.
    joined: Vec<Notify>,
}

#[derive(Debug)]
struct State {
    /// In order of arrival.
    waiting: BTreeMap<u64, Waiting>,
    next_number: u64,
    stores: Vec<StoreState>,
    /// Why no worker can wait any more.
    closed: Option<Error>,
}

#[derive(Debug, Default)]
struct StoreState {
    /// A worker waits that the last claim does not answer.
    is_wanted: bool,
    /// The queues of the claim in progress.
    asking: HashSet<QueueName>,
    /// The claim in progress is for workers with a smaller number.
    before: u64,
    /// The queues in which the last claim left no due job: hints and sweeps bring later ones.
    quiet: HashSet<QueueName>,
    error: Option<Error>,
}

#[derive(Debug)]
struct Waiting {
    wish: Wish,
    /// The jobs of the current claim.
    jobs: Vec<Taken>,
    /// Stores that no claim has asked yet for this worker.
    unasked: Vec<usize>,
    answer: oneshot::Sender<Result<Given>>,
}

/// Jobs given to a worker; handed back when dropped.
#[derive(Debug)]
pub(super) struct Given {
    remote: Arc<Remote>,
    store: usize,
    jobs: Vec<Taken>,
}

/// A worker's place in the line; given up when dropped.
#[derive(Debug)]
pub(super) struct Place {
    line: Arc<Line>,
    number: u64,
    worker: String,
    lease: Option<Duration>,
    answer: oneshot::Receiver<Result<Given>>,
}

/// Jobs claimed for a worker. Unless [accepted](Self::accept), they are handed back when this is
/// dropped.
#[derive(Debug)]
#[must_use = "the jobs are handed back"]
pub struct Pulled {
    line: Arc<Line>,
    worker: String,
    given: Given,
}

/// A job and its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PulledJob {
    /// The job.
    pub leased: LeasedJob,
    /// The lease, for [`renew`](super::PullServer::renew) and
    /// [`settle`](super::PullServer::settle).
    pub lease: PullLease,
    /// How many attempts the job has.
    pub max_attempts: u32,
}

impl Line {
    pub(super) fn new(remote: Arc<Remote>) -> Self {
        let stores = remote.stores();
        let state = State {
            waiting: BTreeMap::new(),
            next_number: 0,
            stores: std::iter::repeat_with(StoreState::default).take(stores).collect(),
            closed: None,
        };
        let joined = std::iter::repeat_with(Notify::new).take(stores).collect();
        Self { remote, workers: Workers::default(), state: Mutex::new(state), joined }
    }

    /// Joins the line. Wakes a claim loop only if its last claim does not answer the wish.
    pub(super) fn join(self: &Arc<Self>, mut wish: Wish) -> Result<Place> {
        let (sender, answer) = oneshot::channel();
        let mut state = self.lock();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        let number = state.next_number;
        state.next_number += 1;
        for (store, joined) in state.stores.iter_mut().zip(&self.joined) {
            let is_quiet =
                |(queue, _): &(Arc<RemoteQueue>, usize)| store.quiet.contains(&queue.name);
            if wish.once || !wish.queues.iter().all(is_quiet) {
                store.is_wanted = true;
                joined.notify_one();
            }
        }
        // Workers' queues take turns at being first.
        let turn = number % wish.queues.len().max(1) as u64;
        wish.queues.rotate_left(usize::try_from(turn).unwrap_or_default());
        let unasked = (0..state.stores.len()).collect();
        let (line, worker, lease) = (Arc::clone(self), wish.worker.clone(), wish.lease);
        let waiting = Waiting { wish, jobs: Vec::new(), unasked, answer: sender };
        state.waiting.insert(number, waiting);
        Ok(Place { line, number, worker, lease, answer })
    }

    /// Answers all waiting workers, and refuses later ones with this error.
    pub(super) fn close(&self, error: Error, answer: impl Fn() -> Result<()>) {
        let mut state = self.lock();
        state.closed.get_or_insert(error);
        for waiting in std::mem::take(&mut state.waiting).into_values() {
            let answer = answer().map(|()| Given::nothing(&self.remote));
            let _ = waiting.answer.send(answer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Records that a store was asked, and answers the workers that wait for no other store.
    fn claim_ended(&mut self, store: usize, answer: impl Fn() -> Result<Given>) {
        let before = self.stores[store].before;
        let mut asked = Vec::new();
        for (number, waiting) in self.waiting.range_mut(..before).filter(|(_, it)| it.wish.once) {
            waiting.unasked.retain(|unasked| *unasked != store);
            asked.extend(waiting.unasked.is_empty().then_some(*number));
        }
        for waiting in asked.into_iter().filter_map(|number| self.waiting.remove(&number)) {
            let _ = waiting.answer.send(answer());
        }
    }
}

impl Takers for Line {
    fn demand(&self, store: usize) -> Demand {
        let mut state = self.lock();
        let mut demand = Demand::default();
        let mut positions = BTreeMap::new();
        // Whose worker has waited longest comes first.
        for Waiting { wish, .. } in state.waiting.values() {
            demand.limit = demand.limit.saturating_add(wish.max);
            for (queue, max) in &wish.queues {
                let lease_for = wish.lease.unwrap_or(queue.policy.lease);
                let position = *positions.entry(queue.name.clone()).or_insert_with(|| {
                    demand.wants.push((Arc::clone(queue), 0, lease_for));
                    demand.wants.len() - 1
                });
                let (_, sum, longest) = &mut demand.wants[position];
                *sum = sum.saturating_add(*max).min(BATCH);
                *longest = lease_for.max(*longest);
            }
        }
        demand.limit = demand.limit.min(BATCH);
        demand.wants.sort_by_key(|(queue, ..)| queue.policy.priority);
        let before = state.next_number;
        let store = &mut state.stores[store];
        (store.is_wanted, store.before) = (false, before);
        store.asking = positions.into_keys().collect();
        if demand.limit == 0 {
            // Nobody follows the hints.
            store.quiet.clear();
        }
        demand
    }

    fn take(&self, store: usize, jobs: Vec<Taken>, is_all: bool) {
        let mut given = BTreeSet::new();
        let mut left = Vec::new();
        let mut state = self.lock();
        for job in jobs {
            // Who has got fewest gets the next; among these, who has waited longest.
            let takers = state.waiting.iter_mut().filter(|(_, waiting)| waiting.takes(&job));
            match takers.min_by_key(|(number, waiting)| (waiting.jobs.len(), **number)) {
                Some((number, waiting)) => {
                    given.insert(*number);
                    waiting.jobs.push(job);
                }
                None => left.push(job),
            }
        }
        for waiting in given.into_iter().filter_map(|number| state.waiting.remove(&number)) {
            let given = Given { remote: Arc::clone(&self.remote), store, jobs: waiting.jobs };
            // If the client is gone, dropping the message hands the jobs back.
            let _ = waiting.answer.send(Ok(given));
        }
        let asked = &mut state.stores[store];
        asked.quiet = std::mem::take(&mut asked.asking);
        if !is_all {
            asked.quiet.clear();
        }
        asked.error = None;
        state.claim_ended(store, || Ok(Given::nothing(&self.remote)));
        drop(state);
        // The workers have left, or another store has served them.
        drop(Given { remote: Arc::clone(&self.remote), store, jobs: left });
    }

    fn failed(&self, store: usize, error: &Error, last: bool) {
        if last {
            return self.close(error.clone(), || Err(error.clone()));
        }
        let mut state = self.lock();
        state.stores[store].quiet.clear();
        state.stores[store].error = Some(error.clone());
        state.claim_ended(store, || Err(error.clone()));
    }

    async fn wanted(&self, store: usize) {
        while !self.lock().stores[store].is_wanted {
            self.joined[store].notified().await;
        }
    }

    fn presence(&self) -> Option<Presence> {
        let (workers, mut queues) = self.workers.present(self.remote.clock().elapsed());
        if workers.is_empty() {
            return None;
        }
        let state = self.lock();
        let mut free: BTreeMap<&QueueName, usize> = BTreeMap::new();
        let mut total: usize = 0;
        for wish in state.waiting.values().map(|waiting| &waiting.wish) {
            total = total.saturating_add(wish.max);
            for (queue, max) in &wish.queues {
                *free.entry(&queue.name).or_default() += max;
                queues.entry(queue.name.clone()).or_insert_with(|| (Arc::clone(queue), 0));
            }
        }
        let queues = queues.into_iter().map(|(name, (queue, running))| {
            (queue, running, free.get(&name).copied().unwrap_or_default())
        });
        Some(Presence { queues: queues.collect(), free: total, workers })
    }
}

impl Waiting {
    fn takes(&self, job: &Taken) -> bool {
        let of_queue = |queue: &RemoteQueue| {
            self.jobs.iter().filter(|other| other.queue.name == queue.name).count()
        };
        let mut wanted = self.wish.queues.iter();
        self.jobs.len() < self.wish.max
            && wanted.any(|(queue, max)| queue.name == job.queue.name && of_queue(queue) < *max)
    }
}

impl Given {
    fn nothing(remote: &Arc<Remote>) -> Self {
        Self { remote: Arc::clone(remote), store: 0, jobs: Vec::new() }
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        let leases = self.jobs.drain(..).map(|job| job.leased.lease());
        self.remote.release(self.store, leases);
    }
}

impl Place {
    /// Waits for jobs until `end`; then the answer has none, or the error of the last claim.
    pub(super) async fn wait(mut self, end: impl Future) -> Result<Pulled> {
        let answer = tokio::select! {
            biased;
            answer = &mut self.answer => answer.ok(),
            _ = end => self.leave(),
        };
        let line = Arc::clone(&self.line);
        let given = match answer {
            Some(answer) => answer?,
            None => {
                let error = line.lock().stores.iter().find_map(|store| store.error.clone());
                error.map_or_else(|| Ok(Given::nothing(&line.remote)), Err)?
            }
        };
        let mut pulled = Pulled { line, worker: std::mem::take(&mut self.worker), given };
        pulled.match_leases(self.lease).await?;
        Ok(pulled)
    }

    /// Leaves the line. Returns the answer if it was sent just before.
    fn leave(&mut self) -> Option<Result<Given>> {
        self.line.lock().waiting.remove(&self.number);
        self.answer.try_recv().ok()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.line.lock().waiting.remove(&self.number);
    }
}

impl Pulled {
    /// Gives the jobs the duration that this worker asked for: a claim for several has the longest.
    async fn match_leases(&mut self, lease: Option<Duration>) -> Result<()> {
        let Given { remote, store, jobs } = &mut self.given;
        let wanted = |job: &Taken| lease.unwrap_or(job.queue.policy.lease);
        let others: Vec<_> = jobs.iter_mut().filter(|job| job.lease_for != wanted(job)).collect();
        if others.is_empty() {
            return Ok(());
        }
        let renewal = |job: &&mut Taken| Renewal::new(job.leased.lease(), wanted(job));
        let renewals: Vec<_> = others.iter().map(renewal).collect();
        let renewed = remote.renew(*store, &renewals).await?;
        for (job, renewed) in others.into_iter().zip(renewed) {
            match renewed {
                Renewed::Until(until) => {
                    job.leased.leased_until = until;
                    job.lease_for = wanted(job);
                }
                Renewed::LostLease => job.lease_for = Duration::ZERO,
            }
        }
        // Without the lost ones.
        jobs.retain(|job| !job.lease_for.is_zero());
        Ok(())
    }

    /// Returns the number of jobs.
    pub fn len(&self) -> usize {
        self.given.jobs.len()
    }

    /// Returns whether no job was due.
    pub fn is_empty(&self) -> bool {
        self.given.jobs.is_empty()
    }

    /// Takes the jobs: from now on they are the worker's, until their leases expire.
    pub fn accept(mut self) -> Vec<PulledJob> {
        let (store, now) = (self.given.store, self.given.remote.now());
        let elapsed = self.given.remote.clock().elapsed();
        let accept = |Taken { queue, leased, lease_for }| {
            let lease = PullLease::new(&leased, store, &self.worker, lease_for);
            let max_attempts = leased.job.max_attempts.unwrap_or(queue.policy.max_attempts);
            self.line.workers.runs(queue, &lease, now.since(leased.job.due), elapsed);
            PulledJob { leased, lease, max_attempts }
        };
        std::mem::take(&mut self.given.jobs).into_iter().map(accept).collect()
    }
}

pub(super) fn is_stopping() -> Error {
    Error::new(ErrorKind::Closed, "the server is stopping and gives out no more jobs")
        .remedy("ask again, or ask another server")
        .operation("claim")
}
