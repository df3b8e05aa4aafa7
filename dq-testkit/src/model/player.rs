//! Plays calls on two backends and compares the answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Backend, BrowseParams, ClaimParams, Claimed, Clock, DeadKind, DeadReason, Due, Entropy,
    FencingToken, Headers, JobId, JobKey, JobRef, JobState, JobView, Lease, LeasedJob, NewJob,
    Operation, QueueName, QueueStats, Renewal, Reschedule, Result, Settlement, SystemClock, Target,
    Timestamp, Verdict, VirtualClock, Want,
};

use super::op::{Handle, Moment, New, Op, Which};
use crate::behaviour::{Failure, Passed};

/// So few that calls meet.
const QUEUES: u8 = 3;
const KEYS: u8 = 3;
/// Small, so that most listings have several pages.
const PAGE: usize = 3;

pub(super) struct Player {
    backends: [Arc<dyn Backend>; 2],
    clock: Arc<VirtualClock>,
    start: Timestamp,
    entropy: Entropy,
    jobs: Vec<NewJob>,
    /// The leases given out, as each of the backends names them.
    leases: Vec<[Lease; 2]>,
}

/// Calls one method on both backends.
macro_rules! both {
    ($player:ident, $backend:ident => $call:expr) => {{
        let [$backend, other] = &$player.backends;
        let reference = $call.await;
        let $backend = other;
        let subject = $call.await;
        [reference, subject]
    }};
}

impl Player {
    pub(super) fn new(
        reference: Arc<dyn Backend>,
        subject: Arc<dyn Backend>,
        clock: Arc<VirtualClock>,
    ) -> Self {
        Self {
            backends: [reference, subject],
            start: clock.now(),
            clock,
            entropy: Entropy::seeded(0),
            jobs: Vec::new(),
            leases: Vec::new(),
        }
    }

    pub(super) async fn play(&mut self, number: usize, op: &Op) -> Passed {
        let at = format!("call {number}, {op:?}");
        match op {
            Op::Schedule(new) => {
                let jobs: Vec<NewJob> = new.iter().map(|new| self.new_job(new)).collect();
                self.jobs.extend(jobs.iter().cloned());
                same(&at, both!(self, backend => backend.schedule(jobs.clone())))?;
            }
            Op::Repeat(number, astray) => {
                let Some(mut job) = pick(&self.jobs, *number).cloned() else { return Ok(()) };
                if let Some(other) = astray {
                    job.queue = queue(*other);
                }
                same(&at, both!(self, backend => backend.schedule(vec![job.clone()])))?;
            }
            Op::Claim { wants, limit, lease } => self.claim(&at, wants, *limit, *lease).await?,
            Op::Settle(ends) => {
                let settlements = |side| self.settlements(ends, side);
                let [reference, subject] = [settlements(0), settlements(1)];
                let [first, second] = &self.backends;
                let answers = [first.settle(&reference).await, second.settle(&subject).await];
                same(&at, answers)?;
            }
            Op::Renew(numbers, lease) => {
                let renewals = |side: usize| -> Vec<Renewal> {
                    let leases = numbers.iter().filter_map(|number| pick(&self.leases, *number));
                    let lease_for = millis(*lease) + Duration::from_millis(1);
                    leases.map(|lease| Renewal { lease: lease[side].clone(), lease_for }).collect()
                };
                let [reference, subject] = [renewals(0), renewals(1)];
                let [first, second] = &self.backends;
                let answers = [first.renew(&reference).await, second.renew(&subject).await];
                same(&at, answers)?;
            }
            Op::Cancel(which) => {
                let jobs: Vec<JobRef> = which.iter().filter_map(|which| self.job(*which)).collect();
                same(&at, both!(self, backend => backend.cancel(&jobs)))?;
            }
            Op::Move(which, due) => {
                let Some(job) = self.job(*which) else { return Ok(()) };
                let wish = [Reschedule { job, due: self.due(*due) }];
                same(&at, both!(self, backend => backend.reschedule(&wish)))?;
            }
            Op::Replay(q, number, due) => {
                let (queue, jobs, due) = (queue(*q), self.ids(*number), self.due(*due));
                let replay = Operation::Replay { queue: &queue, jobs: jobs.as_deref(), due };
                same(&at, both!(self, backend => backend.operate(replay)))?;
            }
            Op::Remove(q, number) => {
                let (queue, jobs) = (queue(*q), self.ids(*number));
                let remove = Operation::Remove { queue: &queue, jobs: jobs.as_deref() };
                same(&at, both!(self, backend => backend.operate(remove)))?;
            }
            Op::Pause(q, paused) => {
                let queue = &queue(*q);
                let operation = match paused {
                    true => Operation::Pause { queue },
                    false => Operation::Resume { queue },
                };
                same(&at, both!(self, backend => backend.operate(operation)))?;
            }
            Op::Purge(q) => {
                let queue = queue(*q);
                same(
                    &at,
                    both!(self, backend => backend.operate(Operation::Purge { queue: &queue })),
                )?;
            }
            Op::Wait(delay) => self.clock.advance(millis(*delay)),
            Op::SetBack(by) => self.clock.set(self.clock.now() - millis(*by)),
        }
        self.compare_counts(&at).await.map(drop)
    }

    /// Compares everything that can be looked at.
    pub(super) async fn compare_stores(&self, calls: usize) -> Passed {
        let at = format!("after {calls} calls");
        self.compare_counts(&at).await?;
        for queue in (0..QUEUES).map(queue) {
            for state in [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Dead] {
                let [first, second] = &self.backends;
                let listings =
                    [list(&**first, &queue, state).await, list(&**second, &queue, state).await];
                same(&format!("{at}, {state} jobs of {queue}"), listings)?;
            }
        }
        for job in &self.jobs {
            let job = JobRef::new(job.queue.clone(), job.id);
            same(&format!("{at}, {job:?}"), both!(self, backend => backend.get(&job)))?;
        }
        Ok(())
    }

    async fn compare_counts(&self, at: &str) -> Passed<Vec<QueueStats>> {
        let queues: Vec<_> = (0..QUEUES).map(queue).collect();
        let counts = same(at, both!(self, backend => backend.stats(&queues)))?;
        let sound = counts.iter().all(|stats| stats.adds_up() != Some(false));
        if !sound {
            return Err(Failure::new(format_args!("{at}: the counts add up: {counts:?}")));
        }
        Ok(counts)
    }

    async fn claim(&mut self, at: &str, wants: &[(u8, usize)], limit: usize, lease: u16) -> Passed {
        let lease_for = millis(lease) + Duration::from_millis(1);
        let mut wants: Vec<Want> =
            wants.iter().map(|(q, max)| Want { queue: queue(*q), max: *max, lease_for }).collect();
        // Each queue once, as runners ask.
        wants.sort_by(|a, b| a.queue.cmp(&b.queue));
        wants.dedup_by(|a, b| a.queue == b.queue);
        let params = ClaimParams { wants: &wants, limit, worker: "model" };
        let [reference, subject] = both!(self, backend => backend.claim(params));
        let leases = |claimed: &Result<Claimed>| -> Vec<Lease> {
            claimed.iter().flat_map(|claimed| &claimed.jobs).map(LeasedJob::lease).collect()
        };
        let pairs = leases(&reference).into_iter().zip(leases(&subject));
        self.leases.extend(pairs.map(|(reference, subject)| [reference, subject]));
        same(at, [reference, subject].map(|claimed| claimed.map(without_tokens)))?;
        Ok(())
    }

    fn settlements(&self, ends: &[(usize, Handle)], side: usize) -> Vec<Settlement> {
        let leases = ends.iter().filter_map(|(at, end)| Some((pick(&self.leases, *at)?, end)));
        leases
            .map(|(lease, end)| Settlement {
                lease: lease[side].clone(),
                verdict: match *end {
                    Handle::Done => Verdict::Done,
                    Handle::Skip => Verdict::Skip,
                    Handle::Retry(due) => Verdict::Retry(self.due(due)),
                    Handle::Snooze(due) => Verdict::Snooze(self.due(due)),
                    Handle::Dead(failed) => {
                        let reason = DeadReason::new(DeadKind::Exhausted, "model");
                        Verdict::Dead { reason, failed }
                    }
                    Handle::Release(started) => Verdict::Release { started },
                },
            })
            .collect()
    }

    fn new_job(&self, new: &New) -> NewJob {
        let id = self.entropy.job_id(SystemClock.now());
        NewJob {
            id,
            queue: queue(new.queue),
            key: new.key.map(key),
            on_conflict: new.on_conflict,
            due: self.due(new.due),
            payload: Bytes::from(id.to_string()),
            headers: Headers::new(),
            max_attempts: None,
        }
    }

    fn due(&self, moment: Moment) -> Due {
        match moment {
            Moment::At(at) => Due::At(self.start + millis(at)),
            Moment::After(delay) => Due::After(millis(delay)),
        }
    }

    fn job(&self, which: Which) -> Option<JobRef> {
        Some(match which {
            Which::Number(number) => {
                let job = pick(&self.jobs, number)?;
                JobRef::new(job.queue.clone(), job.id)
            }
            Which::Astray(number, q) => JobRef::new(queue(q), pick(&self.jobs, number)?.id),
            Which::Key(q, k) => JobRef::new(queue(q), Target::Key(key(k))),
        })
    }

    fn ids(&self, number: Option<usize>) -> Option<Vec<JobId>> {
        let job = pick(&self.jobs, number?)?;
        Some(vec![job.id])
    }
}

/// The answer, if it is the same on both sides. Errors are the same if their kinds are.
fn same<T: PartialEq + std::fmt::Debug>(at: &str, answers: [Result<T>; 2]) -> Passed<T> {
    let [reference, subject] = answers;
    match (reference, subject) {
        (Ok(reference), Ok(subject)) if reference == subject => Ok(subject),
        (reference, subject) => Err(Failure::new(format_args!(
            "{at}\n  reference: {reference:?}\n  subject:   {subject:?}"
        ))),
    }
}

/// A listing, page by page.
async fn list(backend: &dyn Backend, queue: &QueueName, state: JobState) -> Result<Vec<JobView>> {
    let mut jobs = Vec::new();
    let mut after = None;
    loop {
        let page = backend.browse(BrowseParams { queue, state, after, limit: PAGE }).await?;
        jobs.extend(page.jobs);
        after = page.next;
        if after.is_none() {
            return Ok(jobs);
        }
    }
}

/// Tokens only have to grow; which numbers they are is the backend's.
fn without_tokens(mut claimed: Claimed) -> Claimed {
    for leased in &mut claimed.jobs {
        leased.token = FencingToken(0);
    }
    claimed
}

/// Any number names one, if there is any.
fn pick<T>(all: &[T], number: usize) -> Option<&T> {
    all.get(number % all.len().max(1))
}

fn queue(number: u8) -> QueueName {
    QueueName::new(format!("q{}", number % QUEUES)).expect("a valid queue name")
}

fn key(number: u8) -> JobKey {
    JobKey::new(format!("k{}", number % KEYS)).expect("a valid key")
}

fn millis(millis: u16) -> Duration {
    Duration::from_millis(millis.into())
}
