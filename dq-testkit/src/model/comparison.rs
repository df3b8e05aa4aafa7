//! Takes steps on two backends, the *reference* and the *subject*, and compares their answers.
//!
//! Steps name queues, keys, jobs and leases by numbers; [`Comparison`] remembers which job and
//! lease each number stands for on each backend.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Backend, BrowseParams, Capabilities, ClaimParams, Claimed, Clock, DeadKind, DeadReason, Due,
    Entropy, FencingToken, Flow, JobId, JobKey, JobRef, JobState, JobView, Lease, LeasedJob,
    NewJob, OnRunning, Operation, Order, QueueName, Rate, Renewal, Reschedule, Result, Settlement,
    SystemClock, Target, Timestamp, Verdict, VirtualClock, Want,
};

use super::rounded::Rounded;
use super::step::{DueTime, Ending, FlowSpec, JobChoice, JobSpec, KEYS, QUEUES, Step};
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

/// The number of a backend: 0 for the reference, 1 for the subject.
type Side = usize;

/// The pause between steps with [`Clocks::Own`], so that no two share a millisecond.
const BETWEEN_STEPS: Duration = Duration::from_millis(2);

pub(super) struct Comparison {
    backends: [Arc<dyn Backend>; 2],
    clock: Arc<VirtualClock>,
    clocks: Clocks,
    start: Timestamp,
    entropy: Entropy,
    /// The subject's capabilities. The steps use no others.
    offered: Capabilities,
    jobs: Vec<NewJob>,
    /// The lease that each backend returned.
    leases: Vec<[Lease; 2]>,
    /// Ids that were also scheduled in another queue, by mistake. A backend chooses which queue
    /// remembers such a job, so the steps do not schedule it again.
    ambiguous_ids: BTreeSet<JobId>,
    /// Whether the clock was set back. An expired pin may then hold again, because the store
    /// decides when it deletes a pin.
    was_set_back: bool,
    /// Whether a queue got a limit for groups. Then a claim's `next_due` may be too early.
    limits_groups: bool,
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
            limits_groups: false,
        }
    }

    pub(super) async fn take(&mut self, number: usize, step: &Step) -> TrialResult {
        let place = format!("step {number}, {step:?}");
        if self.clocks == Clocks::Own {
            tokio::time::sleep(BETWEEN_STEPS).await;
            self.clock.set(SystemClock.now());
        }
        match step {
            Step::Schedule(specs) => {
                let jobs: Vec<NewJob> = specs.iter().map(|spec| self.new_job(spec)).collect();
                self.jobs.extend(jobs.iter().cloned());
                self.compare(&place, async |_, store| store.schedule(jobs.clone()).await).await?;
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
                self.compare(&place, async |_, store| store.schedule(vec![job.clone()]).await)
                    .await?;
            }
            Step::Claim { wants, limit, lease } => {
                self.claim(&place, wants, *limit, *lease).await?
            }
            Step::Settle(endings) => {
                self.compare(&place, async |side, store| {
                    store.settle(&self.settlements(endings, side)).await
                })
                .await?;
            }
            Step::Renew(numbers, lease) => self.renew(&place, numbers, *lease).await?,
            Step::Cancel(choices) => {
                let jobs: Vec<JobRef> =
                    choices.iter().filter_map(|choice| self.job(*choice)).collect();
                self.compare(&place, async |_, store| store.cancel(&jobs).await).await?;
            }
            Step::Reschedule(choices) => {
                let change = |(choice, due): &(JobChoice, DueTime)| {
                    Some(Reschedule { job: self.job(*choice)?, due: self.due(*due) })
                };
                let changes: Vec<Reschedule> = choices.iter().filter_map(change).collect();
                self.compare(&place, async |_, store| store.reschedule(&changes).await).await?;
            }
            Step::Replay(number, job, due) => {
                let (queue, jobs, due) = (queue(*number), self.ids(*job), self.due(*due));
                self.operate(&place, Operation::Replay { queue: &queue, jobs: &jobs, due }).await?;
            }
            Step::Remove(number, job) => {
                let (queue, jobs) = (queue(*number), self.ids(*job));
                self.operate(&place, Operation::Remove { queue: &queue, jobs: &jobs }).await?;
            }
            Step::Pause(number, paused) => {
                let queue = &queue(*number);
                let operation = match paused {
                    true => Operation::Pause { queue },
                    false => Operation::Resume { queue },
                };
                self.operate(&place, operation).await?;
            }
            Step::Flow(..) | Step::Unlimit(_) if !self.offered.flow => {}
            Step::Flow(number, overrides, spec) => {
                let (queue, flow) = (&queue(*number), self.flow(spec));
                self.limits_groups |= flow.group_max_running.is_some();
                let operation = match overrides {
                    true => Operation::OverrideFlow { queue, flow: Some(flow) },
                    false => Operation::DeclareFlow { queue, flow },
                };
                self.operate(&place, operation).await?;
            }
            Step::Unlimit(number) => {
                let operation = Operation::OverrideFlow { queue: &queue(*number), flow: None };
                self.operate(&place, operation).await?;
            }
            Step::Purge(number) => {
                self.operate(&place, Operation::Purge { queue: &queue(*number) }).await?;
            }
            Step::Wait(_) | Step::SetBack(_) if self.clocks == Clocks::Own => {}
            Step::Wait(delay) => self.clock.advance(self.duration(*delay)),
            Step::SetBack(by) => {
                // Renew all leases before and after, because stores differ in whether a read ends a
                // lease for good, and in whether they shorten a lease from the future.
                let all: Vec<usize> = (0..self.leases.len()).collect();
                self.renew(&place, &all, LONG_LEASE).await?;
                self.clock.set(self.clock.now() - self.duration(*by));
                self.was_set_back = true;
                self.renew(&place, &all, LONG_LEASE).await?;
            }
        }
        self.compare_counts(&place).await
    }

    pub(super) async fn compare_contents(&self, steps: usize) -> TrialResult {
        let place = format!("after {steps} steps");
        self.compare_counts(&place).await?;
        for queue in (0..QUEUES).map(queue) {
            for state in self.states() {
                for (order, payloads) in [(Order::Ascending, true), (Order::Descending, false)] {
                    let page = BrowseParams::new(&queue, *state).limit(PAGE_SIZE);
                    let page = page.order(order).payloads(payloads);
                    let place = format!("{place}, {order:?} {state} jobs of {queue}");
                    self.compare(&place, async |_, store| {
                        self.offered_views(list(store, page).await)
                    })
                    .await?;
                }
            }
            if self.offered.forecast {
                let at = |number: u16| self.start + self.duration(number);
                let edges = [Timestamp::EPOCH, at(0), at(40), at(41), at(400), at(60_000)];
                let place = format!("{place}, a forecast of {queue}");
                self.compare(&place, async |_, store| store.forecast(&queue, &edges).await).await?;
            }
        }
        for job in &self.jobs {
            let job = JobRef::new(job.queue.clone(), job.id);
            self.compare(&format!("{place}, {job:?}"), async |_, store| {
                self.offered_views(store.get(&job).await.map(Vec::from_iter))
            })
            .await?;
        }
        Ok(())
    }

    async fn compare<T: Rounded + PartialEq + Debug>(
        &self,
        place: &str,
        call: impl AsyncFn(Side, &dyn Backend) -> Result<T>,
    ) -> TrialResult<T> {
        let [reference, subject] = &self.backends;
        self.agree(place, [call(0, &**reference).await, call(1, &**subject).await])
    }

    async fn operate(&self, place: &str, operation: Operation<'_>) -> TrialResult {
        self.compare(place, async |_, store| store.operate(operation).await).await?;
        Ok(())
    }

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

    async fn compare_counts(&self, place: &str) -> TrialResult {
        let queues: Vec<_> = (0..QUEUES).map(queue).collect();
        let counts = self.compare(place, async |_, store| {
            let mut counts = store.stats(&queues).await?;
            if !self.offered.totals {
                counts.iter_mut().for_each(|stats| stats.totals = None);
            }
            Ok(counts)
        });
        let counts = counts.await?;
        if counts.iter().any(|stats| stats.adds_up() == Some(false)) {
            let failure = format_args!("{place}: the counts do not add up: {counts:?}");
            return Err(Failure::new(failure));
        }
        Ok(())
    }

    async fn claim(
        &mut self,
        place: &str,
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
        let claim = async |store: &dyn Backend| match takes_all {
            true => claim_all(store, params).await,
            false => store.claim(params).await,
        };
        let [reference, subject] = &self.backends;
        let (reference, mut subject) = (claim(&**reference).await, claim(&**subject).await);
        if self.clocks == Clocks::Own
            && self.limits_groups
            && let (Ok(exact), Ok(claimed)) = (&reference, &mut subject)
            && let Some(next_due) = claimed.next_due
            && exact.next_due.is_none_or(|exact| next_due < exact)
        {
            claimed.next_due = exact.next_due;
        }
        let leases = |claimed: &Result<Claimed>| -> Vec<Lease> {
            claimed.iter().flat_map(|claimed| &claimed.jobs).map(LeasedJob::lease).collect()
        };
        let pairs = leases(&reference).into_iter().zip(leases(&subject));
        self.leases.extend(pairs.map(|(reference, subject)| [reference, subject]));
        self.agree(place, [reference, subject].map(|claimed| claimed.map(without_tokens)))?;
        Ok(())
    }

    async fn renew(&self, place: &str, numbers: &[usize], lease: u16) -> TrialResult {
        let lease_for = self.duration(lease) + self.unit();
        self.compare(place, async |side, store| {
            let leases = numbers.iter().filter_map(|number| pick(&self.leases, *number));
            let renewals = leases.map(|lease| Renewal::new(lease[side].clone(), lease_for));
            store.renew(&renewals.collect::<Vec<_>>()).await
        })
        .await?;
        Ok(())
    }

    /// The backends have granted the same leases with other tokens.
    fn settlements(&self, endings: &[(usize, Ending)], side: Side) -> Vec<Settlement> {
        let settlement = |(number, ending): &(usize, Ending)| {
            let lease = pick(&self.leases, *number)?[side].clone();
            Some(Settlement::new(lease, self.verdict(*ending)))
        };
        let mut settlements: Vec<_> = endings.iter().filter_map(settlement).collect();
        if self.clocks == Clocks::Own {
            // A store may settle the jobs from a second lease of one job on a millisecond later.
            let mut jobs = BTreeSet::new();
            settlements.retain(|settlement| jobs.insert(settlement.lease.job));
        }
        settlements
    }

    fn verdict(&self, ending: Ending) -> Verdict {
        match ending {
            Ending::Done => Verdict::Done,
            Ending::Skip => Verdict::skip("a reason"),
            Ending::Retry(due) => Verdict::retry(self.due(due), "a reason"),
            Ending::Again(due, payload) if self.offered.again => Verdict::Again {
                due: self.due(due),
                payload: Bytes::from(vec![b'a'; payload.into()]),
            },
            Ending::Throttle(due) if self.offered.flow => Verdict::Throttle(self.due(due)),
            Ending::Snooze(due) | Ending::Throttle(due) | Ending::Again(due, _) => {
                Verdict::Snooze(self.due(due))
            }
            Ending::Dead(failed) => {
                Verdict::Dead { reason: DeadReason::new(DeadKind::Exhausted, "model"), failed }
            }
            Ending::Release(started) => Verdict::Release { started },
        }
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
        if let Some(group) = spec.group.filter(|_| self.offered.groups) {
            job = job.group(format!("group {group}"));
        }
        job.on_conflict(spec.on_conflict)
    }

    fn flow(&self, spec: &FlowSpec) -> Flow {
        let mut flow = Flow::UNLIMITED;
        flow.max_running = spec.max_running;
        flow.group_max_running = spec.group_max_running.filter(|_| self.offered.groups);
        flow.rate = spec.rate.map(|(jobs, per, burst)| {
            let rate = Rate::new(jobs, self.duration(per)).and_then(|rate| rate.burst(burst));
            rate.expect("a valid rate")
        });
        flow
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

    /// Returns the answer if both backends agree, with times rounded to the steps' unit.
    fn agree<T: Rounded + PartialEq + Debug>(
        &self,
        place: &str,
        answers: [Result<T>; 2],
    ) -> TrialResult<T> {
        let [reference, subject] = answers.map(|mut answer| {
            answer.iter_mut().for_each(|answer| answer.round(&|time| self.round(time)));
            answer
        });
        match (reference, subject) {
            (Ok(reference), Ok(subject)) if reference == subject => Ok(subject),
            (reference, subject) => Err(Failure::new(format_args!(
                "{place}\n  reference: {reference:?}\n  subject:   {subject:?}"
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

    /// The id of one job, or all ids. Jobs that are not dead are among them and must not change.
    fn ids(&self, number: Option<usize>) -> Vec<JobId> {
        match number {
            None => self.jobs.iter().map(|job| job.id).collect(),
            Some(number) => pick(&self.jobs, number).map(|job| job.id).into_iter().collect(),
        }
    }
}

/// The time by which a listing orders the job.
fn listed_at(view: &JobView) -> Timestamp {
    let at = match view.state {
        JobState::Running => view.leased_until,
        JobState::Dead => view.dead.as_ref().map(|(_, since)| *since),
        JobState::Ended => view.ended.as_ref().map(|ended| ended.at),
        _ => None,
    };
    at.unwrap_or(view.job.due)
}

/// Claims until no job is left. The jobs are sorted by id.
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
            return Ok(jobs);
        }
        params = params.after(page.next);
    }
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
