//! Takes steps on two backends, the *reference* and the *subject*, and compares what both answer.
//!
//! Steps name queues, keys, jobs and leases by numbers; [`Comparison`] remembers which job and lease
//! each number stands for on each backend.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Backend, BrowseParams, Capabilities, ClaimParams, Claimed, Clock, DeadKind, DeadReason, Due,
    Entropy, FencingToken, JobId, JobKey, JobRef, JobState, JobView, Lease, LeasedJob, NewJob,
    OnRunning, Operation, Order, QueueName, QueueStats, Renewal, Reschedule, Result, Settlement,
    SystemClock, Target, Timestamp, Verdict, VirtualClock, Want,
};

use super::rounded::Rounded;
use super::step::{DueTime, Ending, JobChoice, JobSpec, KEYS, QUEUES, Step};
use crate::behaviour::{Failure, TrialResult};

/// Jobs per page. Small, so that most listings have several pages.
const PAGE_SIZE: usize = 3;

/// More jobs than any sequence of steps schedules.
const ALL: usize = 1_000;

/// In the unit of the steps. Longer than most waits.
const LONG_LEASE: u16 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clocks {
    /// Both use the virtual clock. Times in steps are milliseconds.
    Shared,
    /// The subject uses the system clock, and the reference follows. Times in steps are hours, so
    /// that no job becomes due and no lease expires meanwhile. [`DueTime::At`] counts from [`PAST`]
    /// hours before the comparison.
    Own,
}

const HOUR: Duration = Duration::from_secs(3_600);

/// Hours. About half of the random [`DueTime::At`] values are smaller.
const PAST: u32 = 250;

/// The pause between steps with [`Clocks::Own`], so that no two share a millisecond.
const BETWEEN_STEPS: Duration = Duration::from_millis(2);

pub(super) struct Comparison {
    /// The reference and the subject.
    backends: [Arc<dyn Backend>; 2],
    clock: Arc<VirtualClock>,
    clocks: Clocks,
    start: Timestamp,
    entropy: Entropy,
    /// What the subject offers. The steps use no other features.
    offered: Capabilities,
    jobs: Vec<NewJob>,
    /// The lease that each backend returned.
    leases: Vec<[Lease; 2]>,
    /// Ids that were also scheduled in another queue, by mistake. A backend chooses which queue
    /// remembers such a job, so the steps do not schedule it again.
    ambiguous_ids: BTreeSet<JobId>,
    /// Whether the clock was set back. An expired pin may then hold again, because the store decides
    /// when it deletes a pin.
    was_set_back: bool,
}

macro_rules! both {
    ($comparison:ident, $backend:ident => $call:expr) => {{
        let [$backend, other] = &$comparison.backends;
        let reference = $call.await;
        let $backend = other;
        let subject = $call.await;
        [reference, subject]
    }};
}

impl Comparison {
    pub(super) fn new(
        reference: Arc<dyn Backend>,
        subject: Arc<dyn Backend>,
        clock: Arc<VirtualClock>,
        clocks: Clocks,
    ) -> Self {
        if clocks == Clocks::Own {
            clock.set(SystemClock.now());
        }
        let start = match clocks {
            Clocks::Shared => clock.now(),
            Clocks::Own => clock.now() - HOUR * PAST,
        };
        Self {
            offered: subject.capabilities(),
            backends: [reference, subject],
            start,
            clock,
            clocks,
            entropy: Entropy::seeded(0),
            jobs: Vec::new(),
            leases: Vec::new(),
            ambiguous_ids: BTreeSet::new(),
            was_set_back: false,
        }
    }

    pub(super) async fn take(&mut self, number: usize, step: &Step) -> TrialResult {
        let at = format!("step {number}, {step:?}");
        if self.clocks == Clocks::Own {
            tokio::time::sleep(BETWEEN_STEPS).await;
            self.clock.set(SystemClock.now());
        }
        match step {
            Step::Schedule(specs) => {
                let jobs: Vec<NewJob> = specs.iter().map(|spec| self.new_job(spec)).collect();
                self.jobs.extend(jobs.iter().cloned());
                self.same(&at, both!(self, backend => backend.schedule(jobs.clone())))?;
            }
            Step::Repeat(number, wrong_queue) => {
                let Some(mut job) = pick(&self.jobs, *number).cloned() else { return Ok(()) };
                let may_be_free = self.was_set_back && !job.remember.is_zero();
                if may_be_free || self.ambiguous_ids.contains(&job.id) {
                    return Ok(());
                }
                if let Some(wrong) = wrong_queue
                    && self.clocks == Clocks::Shared
                {
                    job.queue = queue(*wrong);
                    self.ambiguous_ids.insert(job.id);
                }
                self.same(&at, both!(self, backend => backend.schedule(vec![job.clone()])))?;
            }
            Step::Claim { wants, limit, lease } => self.claim(&at, wants, *limit, *lease).await?,
            Step::Settle(endings) => {
                let settlements = |side| self.settlements(endings, side);
                let [reference, subject] = [settlements(0), settlements(1)];
                let [first, second] = &self.backends;
                let answers = [first.settle(&reference).await, second.settle(&subject).await];
                self.same(&at, answers)?;
            }
            Step::Renew(numbers, lease) => self.renew(&at, numbers, *lease).await?,
            Step::Cancel(choices) => {
                let jobs: Vec<JobRef> =
                    choices.iter().filter_map(|choice| self.job(*choice)).collect();
                self.same(&at, both!(self, backend => backend.cancel(&jobs)))?;
            }
            Step::Reschedule(choice, due) => {
                let Some(job) = self.job(*choice) else { return Ok(()) };
                let change = [Reschedule { job, due: self.due(*due) }];
                self.same(&at, both!(self, backend => backend.reschedule(&change)))?;
            }
            Step::Replay(number, job, due) => {
                let (queue, jobs, due) = (queue(*number), self.ids(*job), self.due(*due));
                let replay = Operation::Replay { queue: &queue, jobs: &jobs, due };
                self.same(&at, both!(self, backend => backend.operate(replay)))?;
            }
            Step::Remove(number, job) => {
                let (queue, jobs) = (queue(*number), self.ids(*job));
                let remove = Operation::Remove { queue: &queue, jobs: &jobs };
                self.same(&at, both!(self, backend => backend.operate(remove)))?;
            }
            Step::Pause(number, paused) => {
                let queue = &queue(*number);
                let operation = match paused {
                    true => Operation::Pause { queue },
                    false => Operation::Resume { queue },
                };
                self.same(&at, both!(self, backend => backend.operate(operation)))?;
            }
            Step::Purge(number) => {
                let queue = queue(*number);
                self.same(
                    &at,
                    both!(self, backend => backend.operate(Operation::Purge { queue: &queue })),
                )?;
            }
            Step::Wait(_) | Step::SetBack(_) if self.clocks == Clocks::Own => {}
            Step::Wait(delay) => self.clock.advance(self.duration(*delay)),
            Step::SetBack(by) => {
                // Renew all leases before and after, because stores differ in whether a read ends a
                // lease for good, and in whether they shorten a lease from the future.
                let all: Vec<usize> = (0..self.leases.len()).collect();
                self.renew(&at, &all, LONG_LEASE).await?;
                self.clock.set(self.clock.now() - self.duration(*by));
                self.was_set_back = true;
                self.renew(&at, &all, LONG_LEASE).await?;
            }
        }
        self.compare_counts(&at).await.map(drop)
    }

    pub(super) async fn compare_contents(&self, steps: usize) -> TrialResult {
        let at = format!("after {steps} steps");
        self.compare_counts(&at).await?;
        for queue in (0..QUEUES).map(queue) {
            for state in self.states() {
                for (order, payloads) in [(Order::Ascending, true), (Order::Descending, false)] {
                    let page = BrowseParams::new(&queue, *state).limit(PAGE_SIZE);
                    let page = page.order(order).payloads(payloads);
                    let [first, second] = &self.backends;
                    let listings = [list(&**first, page).await, list(&**second, page).await];
                    let listings = listings.map(|listing| self.offered_views(listing));
                    self.same(&format!("{at}, {order:?} {state} jobs of {queue}"), listings)?;
                }
            }
            if self.offered.forecast {
                let at = |number: u16| self.start + self.duration(number);
                let edges = [Timestamp::EPOCH, at(0), at(40), at(41), at(400), at(60_000)];
                let counts = both!(self, backend => backend.forecast(&queue, &edges));
                self.same(&format!("after {steps} steps, a forecast of {queue}"), counts)?;
            }
        }
        for job in &self.jobs {
            let job = JobRef::new(job.queue.clone(), job.id);
            let views = both!(self, backend => backend.get(&job))
                .map(|view| self.offered_views(view.map(Vec::from_iter)));
            self.same(&format!("{at}, {job:?}"), views)?;
        }
        Ok(())
    }

    /// The states that the subject can list.
    fn states(&self) -> &'static [JobState] {
        const STATES: &[JobState] = &[
            JobState::Scheduled,
            JobState::Ready,
            JobState::Running,
            JobState::Dead,
            JobState::Ended,
        ];
        if self.offered.history { STATES } else { &STATES[..4] }
    }

    /// Drops fields that the subject does not keep, and sorts jobs by id where their order is free.
    ///
    /// The order is free for equal times on a store that is not FIFO. It is also free for jobs that
    /// ended together, because a purge removes jobs in any order.
    fn offered_views(&self, views: Result<Vec<JobView>>) -> Result<Vec<JobView>> {
        let mut views = views?;
        views.iter_mut().for_each(|view| view.round(&|time| self.round(time)));
        let in_any_order = |a: &JobView, b: &JobView| {
            listed_at(a) == listed_at(b) && (!self.offered.fifo || a.state == JobState::Ended)
        };
        for same_time in views.chunk_by_mut(in_any_order) {
            same_time.sort_by_key(|view| view.job.id);
        }
        views.retain(|view| {
            let is_comparable = self.offered.history && !self.ambiguous_ids.contains(&view.job.id);
            is_comparable || view.state != JobState::Ended
        });
        if !self.offered.reasons {
            for view in &mut views {
                view.last_error = None;
                view.worker = None;
                view.leased_since = None;
            }
        }
        Ok(views)
    }

    async fn compare_counts(&self, at: &str) -> TrialResult<Vec<QueueStats>> {
        let queues: Vec<_> = (0..QUEUES).map(queue).collect();
        let counts = both!(self, backend => backend.stats(&queues)).map(|counts| {
            let mut counts = counts?;
            if !self.offered.totals {
                counts.iter_mut().for_each(|counts| counts.totals = None);
            }
            Ok(counts)
        });
        let counts = self.same(at, counts)?;
        if counts.iter().any(|stats| stats.adds_up() == Some(false)) {
            return Err(Failure::new(format_args!("{at}: the counts do not add up: {counts:?}")));
        }
        Ok(counts)
    }

    async fn claim(
        &mut self,
        at: &str,
        wants: &[(u8, usize)],
        limit: usize,
        lease: u16,
    ) -> TrialResult {
        let lease_for = self.duration(lease) + self.unit();
        // A store that is not FIFO chooses which due jobs come first, so claim all or none.
        let takes_all = !self.offered.fifo;
        let at_most = |max: usize| if takes_all { max.min(1) * ALL } else { max };
        let want =
            |(number, max): &(u8, usize)| Want::new(queue(*number), at_most(*max), lease_for);
        let mut wants: Vec<Want> = wants.iter().map(want).collect();
        // Runners name each queue once.
        wants.sort_by(|a, b| a.queue.cmp(&b.queue));
        wants.dedup_by(|a, b| a.queue == b.queue);
        let params = ClaimParams::new(&wants, at_most(limit), "model");
        let [reference, subject] = match takes_all {
            true => both!(self, backend => claim_all(&**backend, params)),
            false => both!(self, backend => backend.claim(params)),
        };
        let leases = |claimed: &Result<Claimed>| -> Vec<Lease> {
            claimed.iter().flat_map(|claimed| &claimed.jobs).map(LeasedJob::lease).collect()
        };
        let pairs = leases(&reference).into_iter().zip(leases(&subject));
        self.leases.extend(pairs.map(|(reference, subject)| [reference, subject]));
        self.same(at, [reference, subject].map(|claimed| claimed.map(without_tokens)))?;
        Ok(())
    }

    async fn renew(&self, at: &str, numbers: &[usize], lease: u16) -> TrialResult {
        let lease_for = self.duration(lease) + self.unit();
        let renewals = |side: usize| -> Vec<Renewal> {
            let leases = numbers.iter().filter_map(|number| pick(&self.leases, *number));
            leases.map(|lease| Renewal::new(lease[side].clone(), lease_for)).collect()
        };
        let [reference, subject] = [renewals(0), renewals(1)];
        let [first, second] = &self.backends;
        let answers = [first.renew(&reference).await, second.renew(&subject).await];
        self.same(at, answers)?;
        Ok(())
    }

    /// The settlements for the reference (`side` 0) or the subject (1), which have granted the same
    /// leases with other tokens.
    fn settlements(&self, endings: &[(usize, Ending)], side: usize) -> Vec<Settlement> {
        let leases =
            endings.iter().filter_map(|(at, ending)| Some((pick(&self.leases, *at)?, ending)));
        leases
            .map(|(lease, ending)| {
                Settlement::new(
                    lease[side].clone(),
                    match *ending {
                        Ending::Done => Verdict::Done,
                        Ending::Skip => Verdict::skip("a reason"),
                        Ending::Retry(due) => Verdict::retry(self.due(due), "a reason"),
                        Ending::Snooze(due) => Verdict::Snooze(self.due(due)),
                        Ending::Again(due, payload) if self.offered.again => Verdict::Again {
                            due: self.due(due),
                            payload: Bytes::from(vec![b'a'; payload.into()]),
                        },
                        Ending::Again(due, _) => Verdict::Snooze(self.due(due)),
                        Ending::Dead(failed) => {
                            let reason = DeadReason::new(DeadKind::Exhausted, "model");
                            Verdict::Dead { reason, failed }
                        }
                        Ending::Release(started) => Verdict::Release { started },
                    },
                )
            })
            .collect()
    }

    fn new_job(&self, spec: &JobSpec) -> NewJob {
        // A fixed seed and the virtual clock repeat the same ids.
        let id = self.entropy.job_id(self.clock.now());
        let payload = Bytes::from(id.to_string());
        let mut job = NewJob::new(id, queue(spec.queue), self.due(spec.due), payload);
        job.key = spec.key.map(key);
        if spec.detach && self.offered.detach {
            job.on_running = OnRunning::Detach;
        }
        if self.offered.history {
            job.remember = self.duration(spec.remember);
        }
        job.on_conflict(spec.on_conflict)
    }

    fn due(&self, due: DueTime) -> Due {
        match due {
            DueTime::At(at) => Due::At(self.start + self.duration(at)),
            DueTime::After(delay) => Due::After(self.duration(delay)),
        }
    }

    fn duration(&self, number: u16) -> Duration {
        self.unit() * number.into()
    }

    fn unit(&self) -> Duration {
        match self.clocks {
            Clocks::Shared => Duration::from_millis(1),
            Clocks::Own => HOUR,
        }
    }

    fn round(&self, time: &mut Timestamp) {
        let (start, unit) = (self.start.as_millis(), self.unit().as_millis() as i64);
        let units = (time.as_millis() - start + unit / 2).div_euclid(unit);
        *time = Timestamp::from_millis(start + units * unit);
    }

    /// The answer if both backends agree, with times rounded to the steps' unit.
    fn same<T: Rounded + PartialEq + std::fmt::Debug>(
        &self,
        at: &str,
        answers: [Result<T>; 2],
    ) -> TrialResult<T> {
        let [reference, subject] = answers.map(|mut answer| {
            answer.iter_mut().for_each(|answer| answer.round(&|time| self.round(time)));
            answer
        });
        match (reference, subject) {
            (Ok(reference), Ok(subject)) if reference == subject => Ok(subject),
            (reference, subject) => Err(Failure::new(format_args!(
                "{at}\n  reference: {reference:?}\n  subject:   {subject:?}"
            ))),
        }
    }

    fn job(&self, choice: JobChoice) -> Option<JobRef> {
        Some(match choice {
            JobChoice::Number(number) => {
                let job = pick(&self.jobs, number)?;
                JobRef::new(job.queue.clone(), job.id)
            }
            JobChoice::InQueue(number, in_queue) => {
                JobRef::new(queue(in_queue), pick(&self.jobs, number)?.id)
            }
            JobChoice::Key(in_queue, number) => {
                JobRef::new(queue(in_queue), Target::Key(key(number)))
            }
        })
    }

    fn ids(&self, number: Option<usize>) -> Vec<JobId> {
        let ids = self.jobs.iter().map(|job| job.id);
        match number {
            // Includes jobs that are not dead; they must not change.
            None => ids.collect(),
            Some(number) => pick(&self.jobs, number).map(|job| job.id).into_iter().collect(),
        }
    }
}

/// Orders a listing.
fn listed_at(view: &JobView) -> Timestamp {
    let at = match view.state {
        JobState::Running => view.leased_until,
        JobState::Dead => view.dead.as_ref().map(|(_, since)| *since),
        JobState::Ended => view.ended.as_ref().map(|ended| ended.at),
        _ => None,
    };
    at.unwrap_or(view.job.due)
}

/// Sorted by id.
async fn claim_all(backend: &dyn Backend, params: ClaimParams<'_>) -> Result<Claimed> {
    let mut jobs = Vec::new();
    loop {
        let mut claimed = backend.claim(params).await?;
        if claimed.jobs.is_empty() {
            jobs.sort_by_key(|leased: &LeasedJob| leased.job.id);
            claimed.jobs = jobs;
            return Ok(claimed);
        }
        jobs.append(&mut claimed.jobs);
    }
}

async fn list(backend: &dyn Backend, mut params: BrowseParams<'_>) -> Result<Vec<JobView>> {
    let mut jobs = Vec::new();
    loop {
        let page = backend.browse(params).await?;
        jobs.extend(page.jobs);
        if page.next.is_none() {
            break;
        }
        params = params.after(page.next);
    }
    Ok(jobs)
}

/// Tokens must grow, but the backend chooses their values.
fn without_tokens(mut claimed: Claimed) -> Claimed {
    for leased in &mut claimed.jobs {
        leased.token = FencingToken(0);
    }
    claimed
}

/// `number` wraps around.
fn pick<T>(all: &[T], number: usize) -> Option<&T> {
    all.get(number % all.len().max(1))
}

fn queue(number: u8) -> QueueName {
    QueueName::new(format!("q{}", number % QUEUES)).expect("a valid queue name")
}

fn key(number: u8) -> JobKey {
    JobKey::new(format!("k{}", number % KEYS)).expect("a valid key")
}
