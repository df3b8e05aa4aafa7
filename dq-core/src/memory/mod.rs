//! The memory backend: the reference model. Nothing survives the process; everything else is as
//! the contract says, on a real or a virtual clock.

mod config;
pub mod index;
mod listing;
mod store;
mod verdict;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use self::store::{Place, Store};
use crate::backend::{
    Backend, BrowseParams, Cancelled, Capabilities, ClaimParams, Claimed, Cursor, Finding,
    LeasedJob, Listeners, OperateReport, Operation, Page, QueueStats, Receipt, Renewal, Renewed,
    Reschedule, Rescheduled, Scheduled, Settled, Settlement, Wakeups,
};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{JobRef, JobView, NewJob, QueueName, Timestamp};

pub use config::MemoryConfig;

/// Jobs in the memory of this process.
pub struct MemoryBackend {
    clock: Arc<dyn Clock>,
    // A plain mutex: held for microseconds, never over an await.
    store: Mutex<Store>,
    listeners: Listeners,
    closed: AtomicBool,
}

impl MemoryBackend {
    /// An empty store that goes by this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            store: Mutex::default(),
            listeners: Listeners::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// The store as it is now, with lapsed leases given back.
    fn open(&self, operation: &'static str) -> Result<(MutexGuard<'_, Store>, Timestamp)> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the memory backend has been closed")
                .operation(operation));
        }
        // A panic in here would be a bug of this module; the others still get an answer.
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that time does not run backwards from call to call.
        let now = self.clock.now();
        store.reclaim(now);
        Ok((store, now))
    }

    fn wake(&self, earlier: Vec<(QueueName, Timestamp)>) {
        for (queue, due) in earlier {
            self.listeners.wake(&queue, due);
        }
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: false, shared: false, ..Capabilities::all() }
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.open("now")?.1)
    }

    async fn schedule(&self, jobs: Vec<NewJob>) -> Result<Vec<Scheduled>> {
        let mut earlier = Vec::new();
        let mut answers = Vec::with_capacity(jobs.len());
        {
            let (mut store, now) = self.open("schedule")?;
            for new in jobs {
                let queue = store.number(&new.queue);
                let head = store.queues[queue].waiting.first();
                let answer = store.schedule(new, now);
                if answer.is_stored() && head.is_none_or(|head| answer.due().as_millis() < head.at)
                {
                    earlier.push((store.queues[queue].name.clone(), answer.due()));
                }
                answers.push(answer);
            }
        }
        self.wake(earlier);
        Ok(answers)
    }

    async fn cancel(&self, jobs: &[JobRef]) -> Result<Vec<Cancelled>> {
        let (mut store, _) = self.open("cancel")?;
        let cancel = |job: &JobRef| {
            let Some(slot) = store.find(&job.queue, &job.target) else {
                return Cancelled::NotFound;
            };
            let record = &store.records[slot];
            match record.place {
                Place::Waiting => {
                    let queue = record.queue;
                    store.remove(slot);
                    store.queues[queue].totals.cancelled += 1;
                    Cancelled::Cancelled
                }
                Place::Leased { .. } => Cancelled::AlreadyRunning,
                Place::Dead(_) => Cancelled::NotFound,
            }
        };
        Ok(jobs.iter().map(cancel).collect())
    }

    async fn reschedule(&self, moves: &[Reschedule]) -> Result<Vec<Rescheduled>> {
        let mut earlier = Vec::new();
        let answers = {
            let (mut store, now) = self.open("reschedule")?;
            let reschedule = |wish: &Reschedule| {
                let Some(slot) = store.find(&wish.job.queue, &wish.job.target) else {
                    return Rescheduled::NotFound;
                };
                let record = &store.records[slot];
                match record.place {
                    Place::Waiting => {
                        let (id, queue, due) = (record.job.id, record.queue, wish.due.resolve(now));
                        store.delay(slot, due);
                        let first = store.queues[queue].waiting.first();
                        if first.is_some_and(|first| first.slot == slot) {
                            earlier.push((wish.job.queue.clone(), due));
                        }
                        Rescheduled::Moved(Receipt { id, due })
                    }
                    Place::Leased { .. } => Rescheduled::AlreadyRunning,
                    Place::Dead(_) => Rescheduled::NotFound,
                }
            };
            moves.iter().map(reschedule).collect()
        };
        self.wake(earlier);
        Ok(answers)
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        let _open = self.open("listen")?;
        Ok(self.listeners.listen(queues))
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let (mut store, now) = self.open("claim")?;
        let mut claimed = Claimed { jobs: Vec::new(), next_due: None, now };
        for want in params.wants {
            let Some(number) = store.known(&want.queue) else {
                continue;
            };
            if store.queues[number].paused {
                continue;
            }
            for _ in 0..want.max.min(params.limit - claimed.jobs.len()) {
                let Some(entry) = store.queues[number].waiting.pop(now.as_millis()) else {
                    break;
                };
                let leased_until = now + want.lease_for;
                let token = store.lease(entry.slot, leased_until);
                let job = store.records[entry.slot].job.clone();
                claimed.jobs.push(LeasedJob { job, token, leased_until });
            }
            let queue = &mut store.queues[number];
            let next = [queue.waiting.first(), queue.leased.first().copied()];
            let next = next.into_iter().flatten().map(|entry| Timestamp::from_millis(entry.at));
            claimed.next_due = claimed.next_due.into_iter().chain(next).min();
        }
        Ok(claimed)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let mut due_again = Vec::new();
        let answers = {
            let (mut store, now) = self.open("settle")?;
            let settle = |settlement: &Settlement| {
                let answer = store.settle(settlement, now);
                if let Some(due) = answer.1 {
                    due_again.push((settlement.lease.queue.clone(), due));
                }
                answer.0
            };
            settlements.iter().map(settle).collect()
        };
        self.wake(due_again);
        Ok(answers)
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let (mut store, now) = self.open("renew")?;
        let renew = |renewal: &Renewal| {
            let Some(slot) = store.held(&renewal.lease) else {
                return Renewed::Lost;
            };
            let until = now + renewal.lease_for;
            store.extend(slot, until);
            Renewed::Until(until)
        };
        Ok(renewals.iter().map(renew).collect())
    }

    async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let (mut store, now) = self.open("stats")?;
        if queues.is_empty() {
            let mut all: Vec<_> = (0..store.queues.len()).map(|n| store.stats(n, now)).collect();
            all.sort_unstable_by(|a, b| a.queue.cmp(&b.queue));
            return Ok(all);
        }
        let stats = |queue: &QueueName| match store.known(queue) {
            Some(number) => store.stats(number, now),
            None => {
                QueueStats { totals: Some(Default::default()), ..QueueStats::empty(queue.clone()) }
            }
        };
        Ok(queues.iter().map(stats).collect())
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        let (mut store, now) = self.open("browse")?;
        let Some(number) = store.known(params.queue) else {
            return Ok(Page { jobs: Vec::new(), next: None });
        };
        let entries = store.list(number, params.state, params.after, now, params.limit + 1);
        let more = entries.len() > params.limit;
        let page = &entries[..entries.len().min(params.limit)];
        let next = page.last().filter(|_| more);
        Ok(Page {
            jobs: page.iter().map(|entry| store.view(entry.slot, now)).collect(),
            next: next
                .map(|last| Cursor { at: Timestamp::from_millis(last.at), seq: last.seq.into() }),
        })
    }

    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        let (store, now) = self.open("get")?;
        Ok(store.find(&job.queue, &job.target).map(|slot| store.view(slot, now)))
    }

    async fn operate(&self, operation: Operation<'_>) -> Result<OperateReport> {
        let affected = {
            let (mut store, now) = self.open("operate")?;
            let Some(number) = store.known(operation.queue()) else {
                if let Operation::Pause { queue } = operation {
                    let number = store.number(queue);
                    store.queues[number].paused = true;
                    return Ok(OperateReport { affected: 1 });
                }
                return Ok(OperateReport::default());
            };
            match operation {
                Operation::Replay { jobs, due, .. } => {
                    let due = due.resolve(now);
                    let dead = store.dead(number, jobs);
                    dead.into_iter().filter(|slot| store.revive(*slot, due)).count()
                }
                Operation::Remove { jobs, .. } => {
                    let dead = store.dead(number, jobs);
                    store.remove_all(number, &dead)
                }
                Operation::Pause { .. } => {
                    usize::from(!std::mem::replace(&mut store.queues[number].paused, true))
                }
                Operation::Resume { .. } => {
                    usize::from(std::mem::replace(&mut store.queues[number].paused, false))
                }
                Operation::Purge { .. } => {
                    let mut doomed = store.dead(number, None);
                    let waiting = store.queues[number].waiting.after(i64::MIN, 0);
                    doomed.extend(waiting.map(|entry| entry.slot));
                    store.remove_all(number, &doomed)
                }
            }
        };
        if let Operation::Replay { queue, .. } | Operation::Resume { queue } = operation {
            self.listeners.wake(queue, self.clock.now());
        }
        Ok(OperateReport { affected: affected as u64 })
    }

    async fn check(&self) -> Vec<Finding> {
        Vec::new()
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        Ok(())
    }
}
