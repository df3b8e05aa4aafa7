//! Takes steps on two backends and compares the answers.

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

/// Jobs per page: few, so that most listings have several pages.
const PAGE_SIZE: usize = 3;

/// More jobs than a claim finds.
const ALL: usize = 1_000;

/// Length of the leases that are renewed when the clock is set back: longer than most waits.
const LONG_LEASE: u16 = 100;

/// How the backends tell the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clocks {
    /// Both by the virtual clock. All times in steps are milliseconds.
    Shared,
    /// The backend under test by the system clock; before each step, the clock of the reference is set
    /// to it. All times in steps are hours, so that nothing becomes due and no lease ends while they
    /// are taken. [`DueTime::At`] counts from [`PAST`] hours before the comparison.
    Own,
}

const HOUR: Duration = Duration::from_secs(3_600);

/// About half of the random times of [`DueTime::At`] are less.
const PAST: u32 = 250;

/// With clocks of their own, the pause before a step, so that no two steps share a millisecond.
const BETWEEN_STEPS: Duration = Duration::from_millis(2);

/// Two backends, and the jobs and leases of the steps so far.
pub(super) struct Comparison {
    /// The reference, then the backend under test.
    backends: [Arc<dyn Backend>; 2],
    clock: Arc<VirtualClock>,
    clocks: Clocks,
    start: Timestamp,
    entropy: Entropy,
    /// The features of the backend under test. The steps use no others.
    offered: Capabilities,
    /// The jobs scheduled so far, by their numbers.
    jobs: Vec<NewJob>,
    /// The leases granted so far, by their numbers, as each backend returned them.
    leases: Vec<[Lease; 2]>,
    /// Ids that were scheduled in another queue, too. Ids are globally unique, so it is the
    /// backend's choice which queue remembers such a job. They are not scheduled again.
    ambiguous_ids: BTreeSet<JobId>,
    /// Whether the clock was set back before. A pin that had ended may stand again then: whether it was
    /// deleted in between is up to the store.
    was_set_back: bool,
}

/// Makes the same call on both backends, and returns both answers.
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

    /// Takes a step on both backends and compares the answers and the counts.
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
            Step::Replay(q, number, due) => {
                let (queue, jobs, due) = (queue(*q), self.ids(*number), self.due(*due));
                let replay = Operation::Replay { queue: &queue, jobs: &jobs, due };
                self.same(&at, both!(self, backend => backend.operate(replay)))?;
            }
            Step::Remove(q, number) => {
                let (queue, jobs) = (queue(*q), self.ids(*number));
                let remove = Operation::Remove { queue: &queue, jobs: &jobs };
                self.same(&at, both!(self, backend => backend.operate(remove)))?;
            }
            Step::Pause(q, paused) => {
                let queue = &queue(*q);
                let operation = match paused {
                    true => Operation::Pause { queue },
                    false => Operation::Resume { queue },
                };
                self.same(&at, both!(self, backend => backend.operate(operation)))?;
            }
            Step::Purge(q) => {
                let queue = queue(*q);
                self.same(
                    &at,
                    both!(self, backend => backend.operate(Operation::Purge { queue: &queue })),
                )?;
            }
            Step::Wait(_) | Step::SetBack(_) if self.clocks == Clocks::Own => {}
            Step::Wait(delay) => self.clock.advance(self.duration(*delay)),
            Step::SetBack(by) => {
                // All leases are renewed before and after. Otherwise a store need not answer like
                // the reference: whether a read ends a lease for good, and whether a lease from
                // the future is shortened, is up to the store.
                let all: Vec<usize> = (0..self.leases.len()).collect();
                self.renew(&at, &all, LONG_LEASE).await?;
                self.clock.set(self.clock.now() - self.duration(*by));
                self.was_set_back = true;
                self.renew(&at, &all, LONG_LEASE).await?;
            }
        }
        self.compare_counts(&at).await.map(drop)
    }

    /// Compares counts, listings and single jobs.
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

    /// The states of jobs that the backend under test can list.
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

    /// The views without what the backend under test does not keep. Those that it may list in any order
    /// are in the order of their ids: jobs of equal times, if it is not FIFO, and jobs that have ended
    /// at the same time, since a purge may remove jobs in any order.
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
        // Which of the jobs that are due come first is up to a store that is not FIFO, so it is asked
        // for all or none.
        let takes_all = !self.offered.fifo;
        let number = |max: usize| if takes_all { max.min(1) * ALL } else { max };
        let want = |(q, max): &(u8, usize)| Want::new(queue(*q), number(*max), lease_for);
        let mut wants: Vec<Want> = wants.iter().map(want).collect();
        // Each queue once, as runners do.
        wants.sort_by(|a, b| a.queue.cmp(&b.queue));
        wants.dedup_by(|a, b| a.queue == b.queue);
        let params = ClaimParams::new(&wants, number(limit), "model");
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

    /// Renews the leases with these numbers.
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

    /// The settlements for one backend: 0 is the reference.
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
        // From a fixed seed and the virtual clock, so that the same steps make the same ids.
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

    /// The duration of a number in a step.
    fn duration(&self, number: u16) -> Duration {
        self.unit() * number.into()
    }

    fn unit(&self) -> Duration {
        match self.clocks {
            Clocks::Shared => Duration::from_millis(1),
            Clocks::Own => HOUR,
        }
    }

    /// Rounds a time to the unit of steps.
    fn round(&self, time: &mut Timestamp) {
        let (start, unit) = (self.start.as_millis(), self.unit().as_millis() as i64);
        let units = (time.as_millis() - start + unit / 2).div_euclid(unit);
        *time = Timestamp::from_millis(start + units * unit);
    }

    /// The answer, if both backends succeeded with the same one. Times are compared as far as steps
    /// can tell them apart.
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
            JobChoice::InQueue(number, q) => JobRef::new(queue(q), pick(&self.jobs, number)?.id),
            JobChoice::Key(q, k) => JobRef::new(queue(q), Target::Key(key(k))),
        })
    }

    fn ids(&self, number: Option<usize>) -> Vec<JobId> {
        let ids = self.jobs.iter().map(|job| job.id);
        match number {
            // More than the dead jobs: the others do not change.
            None => ids.collect(),
            Some(number) => pick(&self.jobs, number).map(|job| job.id).into_iter().collect(),
        }
    }
}

/// The time by which a job is listed.
fn listed_at(view: &JobView) -> Timestamp {
    let at = match view.state {
        JobState::Running => view.leased_until,
        JobState::Dead => view.dead.as_ref().map(|(_, since)| *since),
        JobState::Ended => view.ended.as_ref().map(|ended| ended.at),
        _ => None,
    };
    at.unwrap_or(view.job.due)
}

/// Claims until no job is left, and returns all in the order of their ids.
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

/// A listing, read page by page.
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

/// Sets all tokens to zero: they only have to grow, and their values are the backend's choice.
fn without_tokens(mut claimed: Claimed) -> Claimed {
    for leased in &mut claimed.jobs {
        leased.token = FencingToken(0);
    }
    claimed
}

/// The element with this number modulo the length, if there is any.
fn pick<T>(all: &[T], number: usize) -> Option<&T> {
    all.get(number % all.len().max(1))
}

fn queue(number: u8) -> QueueName {
    QueueName::new(format!("q{}", number % QUEUES)).expect("a valid queue name")
}

fn key(number: u8) -> JobKey {
    JobKey::new(format!("k{}", number % KEYS)).expect("a valid key")
}
