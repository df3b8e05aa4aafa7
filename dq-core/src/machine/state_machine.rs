//! The rules of the contract: how each call changes the state.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use bytes::Bytes;

use super::affinity::Affinity;
use super::gate::Room;
use super::groups::MAX_PARKED;
use super::history::History;
use super::index::{MIN_KEY, Slot, TimeEntry};
use super::placement::{JobPlacement, Stored};
use super::table::{Admission, JobTable, Quota};
use crate::backend::{
    Announced, Announcement, BrowseParams, Cancelled, ClaimParams, Claimed, Cursor, LeasedJob,
    Listeners, OperateReport, Operation, Page, QueueStats, Receipt, Renewal, Renewed, Reschedule,
    Rescheduled, Scheduled, Settled, Settlement, Verdict,
};
use crate::model::{
    Ended, Ending, HistoryLimits, Job, JobRef, JobState, JobView, NewJob, OnRunning, QueueName,
    Target, Timestamp,
};

/// Maximum jobs that one purge call removes. Builds that share a log must agree on it.
const PURGE_STEP: usize = 1_000;

/// A store's jobs and the rules of the contract.
///
/// Each call takes its time as an argument, and most calls first
/// [expire leases](Self::expire_leases). The time may go backwards between calls: an expired lease
/// stays expired.
///
/// A backend that keeps payloads and headers elsewhere schedules jobs without them, and stores an
/// `R` for each.
#[derive(Debug, Default)]
pub struct Machine<R = ()> {
    pub(super) table: JobTable<R>,
    pub(super) history: History,
    pub(super) history_limits: HistoryLimits,
    pub(super) runners: BTreeMap<String, Announced>,
    /// See [`Self::take_hints`].
    pub(super) hints: Vec<MachineHint>,
}

/// A job may be due in the queue at this time, earlier than listeners know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineHint {
    /// The queue.
    pub queue: QueueName,
    /// When to claim.
    pub due: Timestamp,
    /// The only worker to wake; `None` for all.
    pub worker: Option<Arc<str>>,
}

impl MachineHint {
    /// Wakes the listeners in this process that the hint is for.
    pub fn send(&self, listeners: &Listeners) {
        match &self.worker {
            Some(worker) => listeners.wake_worker(&self.queue, worker, self.due),
            None => listeners.wake(&self.queue, self.due),
        }
    }
}

/// The calls of the contract. Most take one item of a batch.
impl<R: Stored> Machine<R> {
    /// Creates an empty machine with these history limits.
    pub fn new(history_limits: HistoryLimits) -> Self {
        Self { history_limits, ..Self::default() }
    }

    /// See [`Backend::schedule`](crate::Backend::schedule).
    pub fn schedule(&mut self, new: NewJob, stored: R, now: Timestamp) -> Scheduled {
        self.table.expire_leases(now);
        let queue = self.table.ensure_queue(&new.queue);
        let first = self.table.queues[queue].waiting.first();
        let scheduled = self.store_or_keep(new, stored, now);
        let is_first = first.is_none_or(|first| scheduled.due().as_millis() < first.at);
        // A due job behind its group's line wakes nobody, and must not hide later jobs from
        // listeners.
        if scheduled.is_stored() && !self.table.park_behind_line(scheduled.id(), now) && is_first {
            self.hint(queue, scheduled.due());
        }
        scheduled
    }

    fn store_or_keep(&mut self, new: NewJob, stored: R, now: Timestamp) -> Scheduled {
        if let Some(same_id) = self.table.find_id(new.id) {
            let job = &self.table.records[same_id].job;
            let receipt = Receipt { id: job.id, due: job.due };
            // A repeated call, or by mistake another job's id.
            return match job.queue == new.queue {
                true => Scheduled::Created(receipt),
                false => Scheduled::Kept(receipt),
            };
        }
        if let Some(ended) = self.find_ended(&new, now) {
            return Scheduled::Ended(ended);
        }
        let due = new.due.resolve(now);
        let receipt = Receipt { id: new.id, due };
        let same_key = new.key.as_ref().and_then(|key| self.table.find_key(&new.queue, key));
        let Some(same_key) = same_key else {
            self.table.create(new, stored, due, JobPlacement::Waiting, now);
            return Scheduled::Created(receipt);
        };
        let record = &self.table.records[same_key];
        let existing = Receipt { id: record.job.id, due: record.job.due };
        let is_running = matches!(record.placement, JobPlacement::Leased { .. });
        let scheduled = if is_running {
            if new.on_running == OnRunning::Refuse {
                return Scheduled::AlreadyRunning(existing);
            }
            self.table.detach_key(same_key);
            Scheduled::Created(receipt)
        } else {
            if !new.on_conflict.replaces(existing.due, due) {
                return Scheduled::Kept(existing);
            }
            self.end(same_key, Ending::Replaced, None, now);
            Scheduled::Replaced(receipt)
        };
        self.table.create(new, stored, due, JobPlacement::Waiting, now);
        scheduled
    }

    /// Finds an ended job with the new job's id: by a pin, or in the queue's history.
    fn find_ended(&mut self, new: &NewJob, now: Timestamp) -> Option<Receipt> {
        if let Some(receipt) = self.history.pinned(new.id, now) {
            return Some(receipt);
        }
        let limit = self.history_limits.of(&new.queue);
        let ended = &self.history.get(&new.queue, new.id, limit, now)?.job;
        Some(Receipt { id: ended.id, due: ended.due })
    }

    fn end(&mut self, slot: Slot, ending: Ending, reason: Option<String>, now: Timestamp) {
        let mut view = self.table.view(slot, now);
        let record = self.table.remove(slot);
        let totals = &mut self.table.queues[record.queue].totals;
        *match ending {
            Ending::Done => &mut totals.done,
            Ending::Skipped => &mut totals.skipped,
            Ending::Cancelled => &mut totals.cancelled,
            Ending::Replaced => &mut totals.replaced,
            Ending::Removed => &mut totals.removed,
        } += 1;
        let dead = view.dead.take().map(|(reason, _)| reason.to_string());
        let notes = record.notes.unwrap_or_default();
        if !notes.remember.is_zero() {
            let receipt = Receipt { id: view.job.id, due: view.job.due };
            self.history.pin(receipt, now + notes.remember);
        }
        let limit = self.history_limits.of(&view.job.queue);
        view.state = JobState::Ended;
        view.job.payload = Bytes::new();
        view.job.headers = Default::default();
        view.leased_until = None;
        view.leased_since = notes.leased_since;
        view.worker = notes.worker.as_deref().map(str::to_owned);
        view.ended = Some(Ended { reason: reason.or(dead), ..Ended::new(ending, now) });
        self.history.add(view, limit);
    }

    /// See [`Backend::cancel`](crate::Backend::cancel).
    pub fn cancel(&mut self, job: &JobRef, now: Timestamp) -> Cancelled {
        self.table.expire_leases(now);
        let Some(slot) = self.table.find(&job.queue, &job.target) else {
            return Cancelled::NotFound;
        };
        let record = &self.table.records[slot];
        match record.placement {
            JobPlacement::Waiting => {
                self.end(slot, Ending::Cancelled, None, now);
                Cancelled::Cancelled
            }
            JobPlacement::Leased { .. } => Cancelled::AlreadyRunning,
            JobPlacement::Dead(..) => Cancelled::NotFound,
        }
    }

    /// See [`Backend::reschedule`](crate::Backend::reschedule).
    pub fn reschedule(&mut self, reschedule: &Reschedule, now: Timestamp) -> Rescheduled {
        self.table.expire_leases(now);
        let JobRef { queue, target } = &reschedule.job;
        let Some(slot) = self.table.find(queue, target) else {
            return Rescheduled::NotFound;
        };
        let record = &self.table.records[slot];
        match record.placement {
            JobPlacement::Waiting => {
                let (id, queue, due) = (record.job.id, record.queue, reschedule.due.resolve(now));
                self.table.set_waiting(slot, due);
                let first = self.table.queues[queue].waiting.first();
                if first.is_some_and(|first| first.slot == slot) {
                    self.hint(queue, due);
                }
                Rescheduled::Moved(Receipt { id, due })
            }
            JobPlacement::Leased { .. } => Rescheduled::AlreadyRunning,
            JobPlacement::Dead(..) => Rescheduled::NotFound,
        }
    }

    /// See [`Backend::claim`](crate::Backend::claim).
    pub fn claim(&mut self, params: ClaimParams<'_>, now: Timestamp) -> Claimed {
        self.claim_selected(params, now, |table, queue, quota| {
            let taken = table.take_due(queue, quota, now);
            (taken, table.queues[queue].waiting.first().map(|entry| entry.at))
        })
    }

    /// Claims jobs by [`Affinity`].
    ///
    /// [`Claimed::next_due`] includes the ends of reservations. A job claimed ahead has a lease
    /// from its due time, and [`Claimed::now`] is then the latest of these due times.
    pub fn claim_preferring<P: Fn(&Job) -> bool>(
        &mut self,
        params: ClaimParams<'_>,
        affinity: &Affinity<P>,
        now: Timestamp,
    ) -> Claimed {
        self.claim_selected(params, now, |table, queue, quota| {
            let (mut taken, mut parked) = (Vec::new(), 0);
            loop {
                let (selected, next) = affinity.select(table, queue, quota.max - taken.len(), now);
                let is_ahead = selected.first().is_some_and(|first| first.at > now.as_millis());
                if is_ahead && !taken.is_empty() {
                    let next = selected.iter().map(|entry| entry.at).chain(next).min();
                    return (taken, next);
                }
                let parked_before = parked;
                for entry in selected {
                    table.queues[queue].waiting.remove(entry.key());
                    match table.admit(entry, taken.len() >= quota.starting) {
                        Admission::Admitted => taken.push(entry.slot),
                        Admission::Parked => parked += 1,
                        Admission::Left => return (taken, Some(entry.at)),
                    }
                }
                // Others may follow those that were parked.
                if parked == parked_before || parked >= MAX_PARKED {
                    return (taken, next);
                }
            }
        })
    }

    /// Claims the jobs that `take` selects.
    ///
    /// `take(table, queue, quota)` removes at most `quota.max` jobs from the queue's index of
    /// waiting jobs. It returns their slots, and from when more can be taken, in Unix milliseconds;
    /// `None` if no other job waits.
    fn claim_selected(
        &mut self,
        params: ClaimParams<'_>,
        now: Timestamp,
        mut take: impl FnMut(&mut JobTable<R>, usize, Quota) -> (Vec<Slot>, Option<i64>),
    ) -> Claimed {
        self.table.expire_leases(now);
        let worker: Arc<str> = params.worker.into();
        let mut claimed = Claimed::new(Vec::new(), None, now);
        for want in params.wants {
            let Some(queue) = self.find_active_queue(&want.queue) else { continue };
            let max = want.max.min(params.limit - claimed.jobs.len());
            let record = &self.table.queues[queue];
            let wanted = max.min(want.starting);
            let allowed = match (record.room(now), &record.limited) {
                (Room::Jobs(room), Some(limited)) => limited.gate.allowed(room, max, want.starting),
                (Room::Jobs(_), None) => max,
                (Room::Full | Room::Until(_), _) => 0,
            };
            let quota = Quota { max: allowed, starting: want.starting };
            let (taken, next) = take(&mut self.table, queue, quota);
            let started = taken.len();
            for slot in taken {
                let start = now.max(self.table.records[slot].job.due);
                claimed.now = claimed.now.max(start);
                let leased_until = start + want.lease_for;
                let token = self.table.lease(slot, &worker, start, leased_until);
                let job = self.table.records[slot].job.clone();
                claimed.jobs.push(LeasedJob::new(job, token, leased_until));
            }
            let next = next.map(Timestamp::from_millis);
            let next = match self.table.queues[queue].limited {
                Some(_) => self.pass_gate(queue, started, next, (&worker, started < wanted), now),
                None => next,
            };
            let lease_end = self.table.first_lease_end(queue).map(Timestamp::from_millis);
            claimed.next_due = [claimed.next_due, next, lease_end].into_iter().flatten().min();
        }
        claimed
    }

    /// See [`Backend::settle`](crate::Backend::settle).
    pub fn settle(&mut self, settlement: &Settlement, now: Timestamp) -> Settled {
        self.table.expire_leases(now);
        let Some(slot) = self.table.find_leased(&settlement.lease) else {
            return Settled::LostLease;
        };
        let queue = self.table.records[slot].queue;
        let has_line = self.table.has_line(slot);
        if let Some(due) = self.apply_verdict(slot, &settlement.verdict, now) {
            self.table.postpone(slot, due);
            self.hint(queue, due);
        }
        self.offer_room(queue, has_line, now);
        Settled::Accepted
    }

    /// Returns when the job is due again; `None` if it has ended or is dead.
    fn apply_verdict(
        &mut self,
        slot: Slot,
        verdict: &Verdict,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let record = &self.table.records[slot];
        let (queue, due) = (record.queue, record.job.due);
        Some(match verdict {
            Verdict::Done => {
                self.end(slot, Ending::Done, None, now);
                return None;
            }
            Verdict::Skip { reason } => {
                self.end(slot, Ending::Skipped, Some(reason.clone()), now);
                return None;
            }
            Verdict::Dead { reason, failed } => {
                self.table.change(slot, |record| record.job.attempts += u32::from(*failed));
                self.table.set_dead(slot, reason.clone(), now);
                return None;
            }
            Verdict::Retry { due, error } => {
                self.table.change(slot, |record| {
                    record.job.attempts += 1;
                    record.job.losses = 0;
                    record.notes_mut().last_error = Some(error.clone());
                });
                due.resolve(now)
            }
            Verdict::Again { due, payload } => {
                let due = due.resolve(now);
                self.table.change(slot, |record| {
                    record.job.first_due = due;
                    record.job.attempts = 0;
                    record.job.losses = 0;
                    record.job.payload = payload.clone();
                    record.notes_mut().last_error = None;
                });
                due
            }
            Verdict::Snooze(due) => {
                self.table.change(slot, |record| record.job.losses = 0);
                due.resolve(now)
            }
            Verdict::Throttle(due) => {
                self.table.change(slot, |record| record.job.losses = 0);
                let due = due.resolve(now);
                self.table.queues[queue].gate_mut().close_until(due);
                due
            }
            Verdict::Release { started } => {
                self.table.change(slot, |record| record.job.deliveries -= u32::from(!started));
                due
            }
        })
    }

    /// See [`Backend::renew`](crate::Backend::renew).
    pub fn renew(&mut self, renewal: &Renewal, now: Timestamp) -> Renewed {
        self.table.expire_leases(now);
        let Some(slot) = self.table.find_leased(&renewal.lease) else {
            return Renewed::LostLease;
        };
        let until = now + renewal.lease_for;
        self.table.renew(slot, renewal.lease.token, until);
        Renewed::Until(until)
    }

    /// See [`Backend::stats`](crate::Backend::stats).
    pub fn stats(&mut self, queues: &[QueueName], now: Timestamp) -> Vec<QueueStats> {
        self.table.expire_leases(now);
        let table = &mut self.table;
        if queues.is_empty() {
            let mut all: Vec<_> = (0..table.queues.len()).map(|n| table.stats(n, now)).collect();
            all.sort_unstable_by(|a, b| a.queue.cmp(&b.queue));
            return all;
        }
        let stats = |name: &QueueName| match table.find_queue(name) {
            Some(queue) => table.stats(queue, now),
            None => {
                QueueStats { totals: Some(Default::default()), ..QueueStats::empty(name.clone()) }
            }
        };
        queues.iter().map(stats).collect()
    }

    /// See [`Backend::browse`](crate::Backend::browse).
    pub fn browse(&mut self, params: BrowseParams<'_>, now: Timestamp) -> Page {
        self.table.expire_leases(now);
        // One extra job shows if there is a next page.
        let mut jobs: Vec<(Cursor, JobView)> = if params.state == JobState::Ended {
            self.history.list(&params, self.history_limits.of(params.queue), now)
        } else {
            let table = &mut self.table;
            let entries = table.list(&params, now);
            let job = |entry: TimeEntry| {
                let cursor = Cursor { at: Timestamp::from_millis(entry.at), seq: entry.seq.into() };
                let mut view = table.view(entry.slot, now);
                if !params.payloads {
                    view.job.payload = Bytes::new();
                }
                (cursor, view)
            };
            entries.into_iter().map(job).collect()
        };
        let has_more = jobs.len() > params.limit;
        jobs.truncate(params.limit);
        let next = jobs.last().filter(|_| has_more).map(|(cursor, _)| *cursor);
        Page::new(jobs.into_iter().map(|(_, view)| view).collect(), next)
    }

    /// See [`Backend::get`](crate::Backend::get).
    pub fn get(&mut self, job: &JobRef, now: Timestamp) -> Option<JobView> {
        self.table.expire_leases(now);
        if let Some(slot) = self.table.find(&job.queue, &job.target) {
            return Some(self.table.view(slot, now));
        }
        match &job.target {
            Target::Id(id) => {
                let limit = self.history_limits.of(&job.queue);
                self.history.get(&job.queue, *id, limit, now).cloned()
            }
            Target::Key(_) => None,
        }
    }

    /// See [`Backend::forecast`](crate::Backend::forecast). Does not expire leases.
    pub fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Vec<u64> {
        let Some(queue) = self.table.find_queue(queue) else {
            return vec![0; edges.len().saturating_sub(1)];
        };
        let before = edges.iter().map(|edge| edge.as_millis().saturating_sub(1));
        let counts = self.table.queues[queue].counts_until(before);
        counts.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as u64).collect()
    }

    /// See [`Backend::announce`](crate::Backend::announce).
    pub fn announce(&mut self, announcement: Announcement, now: Timestamp) {
        let Announcement { name, info, ttl } = announcement;
        self.runners.retain(|_, runner| runner.until > now);
        if ttl.is_zero() {
            self.runners.remove(&name);
        } else {
            self.runners.insert(name.clone(), Announced::new(name, info, now, now + ttl));
        }
    }

    /// See [`Backend::runners`](crate::Backend::runners).
    pub fn runners(&self, now: Timestamp) -> Vec<Announced> {
        self.runners.values().filter(|runner| runner.until > now).cloned().collect()
    }

    /// See [`Backend::operate`](crate::Backend::operate).
    pub fn operate(&mut self, operation: Operation<'_>, now: Timestamp) -> OperateReport {
        self.table.expire_leases(now);
        let table = &mut self.table;
        let queue = match (table.find_queue(operation.queue()), operation) {
            (Some(queue), _) => queue,
            // These hold before the queue's first job.
            (
                None,
                Operation::Pause { queue } | Operation::OverrideFlow { queue, flow: Some(_) },
            ) => table.ensure_queue(queue),
            (None, Operation::DeclareFlow { queue, flow }) if flow.is_limited() => {
                table.ensure_queue(queue)
            }
            (None, _) => return OperateReport::default(),
        };
        let mut more = false;
        let affected = match operation {
            Operation::Replay { jobs, due, .. } => {
                let due = due.resolve(now);
                let dead = table.find_dead(queue, jobs);
                dead.into_iter().filter(|slot| table.replay(*slot, due)).count()
            }
            Operation::Remove { jobs, .. } => {
                let dead = table.find_dead(queue, jobs);
                self.remove_all(&dead, now)
            }
            Operation::Pause { .. } => {
                usize::from(!mem::replace(&mut table.queues[queue].paused, true))
            }
            Operation::Resume { .. } => {
                let queue = &mut table.queues[queue];
                let closed = queue.limited.as_mut().and_then(|it| it.gate.closed_until.take());
                let was_closed = closed.is_some_and(|until| until > now);
                usize::from(mem::replace(&mut queue.paused, false) | was_closed)
            }
            Operation::DeclareFlow { flow, .. } => {
                table.queues[queue].change_gate(flow.is_limited(), |gate| gate.declared = flow)
            }
            Operation::OverrideFlow { flow, .. } => {
                table.queues[queue].change_gate(flow.is_some(), |gate| gate.overriding = flow)
            }
            Operation::Purge { .. } => {
                let queue = &mut table.queues[queue];
                let dead = queue.dead.iter().copied();
                let parked = queue.groups.as_mut().map(|groups| groups.parked.after(MIN_KEY));
                let waiting = queue.waiting.after(MIN_KEY).chain(parked.into_iter().flatten());
                let mut jobs: Vec<_> =
                    dead.chain(waiting).take(PURGE_STEP + 1).map(|entry| entry.slot).collect();
                more = jobs.len() > PURGE_STEP;
                jobs.truncate(PURGE_STEP);
                self.remove_all(&jobs, now)
            }
        };
        if let Operation::Replay { .. }
        | Operation::Resume { .. }
        | Operation::DeclareFlow { .. }
        | Operation::OverrideFlow { .. } = operation
        {
            // The hint causes a claim, which returns the queue's next due time.
            self.hint(queue, now);
        }
        OperateReport { affected: affected as u64, more }
    }

    fn remove_all(&mut self, jobs: &[Slot], now: Timestamp) -> usize {
        for job in jobs {
            self.end(*job, Ending::Removed, None, now);
        }
        jobs.len()
    }

    /// Finds a queue's number; `None` if the queue does not exist or is paused.
    pub(super) fn find_active_queue(&self, name: &QueueName) -> Option<usize> {
        self.table.find_queue(name).filter(|queue| !self.table.queues[*queue].paused)
    }

    pub(super) fn hint(&mut self, queue: usize, due: Timestamp) {
        let queue = self.table.queues[queue].name.clone();
        self.hints.push(MachineHint { queue, due, worker: None });
    }
}
