//! A discrete event simulation for one queue. Jobs become due, take free slots by due time, and end
//! after their run times, within the limits of the queue. Queues share no slots, so each is played
//! alone.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use super::report::QueueSimulation;
use crate::backend::QueueFlow;
use crate::model::{Histogram, Overlap, QueueName, RateState, ScheduleSpec, Timestamp};

#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
    pub(super) load: u64,
}

#[derive(Debug)]
pub(super) struct QueueModel {
    pub(super) queue: QueueName,
    pub(super) concurrency: u64,
    pub(super) flow: QueueFlow,
    pub(super) run_times: RunTimes,
    /// The pending jobs, in any order.
    pub(super) pending: Vec<PendingJob>,
    pub(super) schedules: Vec<ScheduleModel>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PendingJob {
    pub(super) due: Timestamp,
    /// Position in [`QueueModel::schedules`].
    pub(super) schedule: Option<usize>,
    /// The group's number.
    pub(super) group: Option<usize>,
}

/// A job that waits or runs, apart from its times: its schedule and its group.
type Traits = (Option<usize>, Option<usize>);

#[derive(Debug)]
pub(super) struct ScheduleModel {
    pub(super) spec: ScheduleSpec,
    /// Delay of its jobs after the schedule's times.
    pub(super) offset: Duration,
    /// The last occurrence not played, or in `missed`.
    pub(super) cursor: Timestamp,
    /// Due times of occurrences handled at the start. One may be later than the start if it waited
    /// while the jitter was raised.
    pub(super) missed: Vec<Timestamp>,
}

impl ScheduleModel {
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        Some(self.spec.next_after(self.cursor)?.saturating_add(self.offset))
    }
}

#[derive(Debug, Clone)]
pub(super) enum RunTimes {
    Fixed(Duration),
    /// Ascending run times, each with a cumulative job count.
    Measured(Vec<(u64, Duration)>),
}

impl RunTimes {
    /// Uses the middle of each bucket. `None` if the histogram is empty.
    pub(super) fn measured(histogram: &Histogram) -> Option<Self> {
        let mut total = 0_u64;
        let buckets = histogram.buckets().map(|bucket| {
            total = total.saturating_add(bucket.count);
            (total, bucket.middle)
        });
        let buckets: Vec<_> = buckets.collect();
        (!buckets.is_empty()).then_some(Self::Measured(buckets))
    }

    /// Returns the run time for the job with this start number.
    ///
    /// Multiples of the golden ratio, modulo 1, spread evenly, so neighbouring jobs have nearly the
    /// measured distribution, and each simulation has the same run times.
    fn of(&self, number: u64) -> Duration {
        const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;
        match self {
            Self::Fixed(duration) => *duration,
            Self::Measured(buckets) => {
                let total = buckets.last().map_or(0, |(total, _)| *total);
                let part = number.wrapping_mul(GOLDEN_RATIO);
                let rank = ((u128::from(part) * u128::from(total)) >> 64) as u64;
                let bucket = buckets.partition_point(|(count, _)| *count <= rank);
                buckets.get(bucket).map_or(Duration::ZERO, |(_, duration)| *duration)
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooManyJobs;

/// Plays a queue. Played jobs and skipped occurrences use up `budget`.
pub(super) fn play(
    mut model: QueueModel,
    window: Window,
    budget: &mut u64,
) -> Result<QueueSimulation, TooManyJobs> {
    model.pending.sort_unstable();
    let pending = std::mem::take(&mut model.pending);
    let mut play = Play::new(model, window, budget);
    for job in &pending {
        if let Some(schedule) = job.schedule {
            play.live[schedule] += window.load;
        }
    }
    play.begin()?;
    let mut pending = pending.into_iter().peekable();
    let mut now = Duration::ZERO;
    loop {
        play.end_jobs(now);
        while let Some(job) = pending.next_if(|job| play.offset_of(job.due) <= now) {
            play.take_from_budget()?;
            play.add(job.due, (job.schedule, job.group));
        }
        play.occur(now)?;
        play.start_jobs(now);
        play.measure(now);
        let opens = play.opens_at(now);
        let ends = play.running.peek().map(|Reverse((end, _))| *end);
        let arrives = pending.peek().map(|job| play.offset_of(job.due));
        let occurs = play.occurrences.peek().map(|Reverse((due, _))| play.offset_of(*due));
        let Some(next) = ends.into_iter().chain(arrives).chain(occurs).chain(opens).min() else {
            return Ok(play.report());
        };
        now = next;
    }
}

/// A waiting job: due time, arrival number, and traits.
type Waiting = (Timestamp, u64, Traits);

#[derive(Debug, Default)]
struct Group {
    running: u32,
    /// Jobs that were first in [`Play::ready`] while the group was full.
    parked: BinaryHeap<Reverse<Waiting>>,
}

/// A queue's state at one time. Durations count from the start of the window.
struct Play<'a> {
    model: QueueModel,
    window: Window,
    /// How many more jobs may be played.
    budget: &'a mut u64,
    /// The next occurrence per schedule: due time, schedule.
    occurrences: BinaryHeap<Reverse<(Timestamp, usize)>>,
    /// Per schedule, its jobs that wait or run.
    live: Vec<u64>,
    /// Per schedule, the occurrence that waits for an earlier one to end.
    waiting: Vec<Option<Timestamp>>,
    /// Jobs waiting for a slot: due time, arrival number, and traits.
    ready: BinaryHeap<Reverse<Waiting>>,
    /// Running jobs: end, traits.
    running: BinaryHeap<Reverse<(Duration, Traits)>>,
    groups: HashMap<usize, Group>,
    parked: usize,
    /// What the rate has used.
    used: RateState,
    arrived: u64,
    skipped: u64,
    lateness: Vec<Duration>,
    backlog: usize,
    backlog_at: Option<Duration>,
    drained: Option<Duration>,
    backlog_at_end: usize,
}

impl<'a> Play<'a> {
    fn new(model: QueueModel, window: Window, budget: &'a mut u64) -> Self {
        let (schedules, used) = (model.schedules.len(), model.flow.used);
        Self {
            model,
            window,
            budget,
            occurrences: BinaryHeap::new(),
            live: vec![0; schedules],
            waiting: vec![None; schedules],
            ready: BinaryHeap::new(),
            running: BinaryHeap::new(),
            groups: HashMap::new(),
            parked: 0,
            used,
            arrived: 0,
            skipped: 0,
            lateness: Vec::new(),
            backlog: 0,
            backlog_at: None,
            drained: None,
            backlog_at_end: 0,
        }
    }

    /// Returns when a job arrives; overdue jobs arrive at the start.
    fn offset_of(&self, due: Timestamp) -> Duration {
        due.since(self.window.start)
    }

    /// Adds missed occurrences, and the next one per schedule.
    fn begin(&mut self) -> Result<(), TooManyJobs> {
        for schedule in 0..self.model.schedules.len() {
            for due in std::mem::take(&mut self.model.schedules[schedule].missed) {
                self.schedule_occurrence(due, schedule)?;
            }
            self.add_next(schedule);
        }
        Ok(())
    }

    fn add_next(&mut self, schedule: usize) {
        let next = self.model.schedules[schedule].next_due();
        if let Some(due) = next.filter(|due| *due < self.window.end) {
            self.occurrences.push(Reverse((due, schedule)));
        }
    }

    /// Schedules the occurrences due by `now`.
    fn occur(&mut self, now: Duration) -> Result<(), TooManyJobs> {
        while let Some(&Reverse((due, schedule))) = self.occurrences.peek()
            && self.offset_of(due) <= now
        {
            self.occurrences.pop();
            self.schedule_occurrence(due, schedule)?;
            let model = &mut self.model.schedules[schedule];
            model.cursor = due - model.offset;
            self.add_next(schedule);
        }
        Ok(())
    }

    /// Adds an occurrence's job, unless the schedule's overlap policy skips or delays it.
    fn schedule_occurrence(&mut self, due: Timestamp, schedule: usize) -> Result<(), TooManyJobs> {
        self.take_from_budget()?;
        let is_free = self.live[schedule] == 0;
        match self.model.schedules[schedule].spec.overlap {
            Overlap::QueueOne if !is_free && self.waiting[schedule].is_none() => {
                self.waiting[schedule] = Some(due);
            }
            Overlap::Skip | Overlap::QueueOne if !is_free => self.skipped += 1,
            Overlap::Allow | Overlap::Skip | Overlap::QueueOne => {
                self.live[schedule] += self.window.load;
                self.add(due, (Some(schedule), None));
            }
        }
        Ok(())
    }

    fn take_from_budget(&mut self) -> Result<(), TooManyJobs> {
        *self.budget = self.budget.checked_sub(self.window.load).ok_or(TooManyJobs)?;
        Ok(())
    }

    /// Adds a due job, as often as the load says.
    fn add(&mut self, due: Timestamp, traits: Traits) {
        for _ in 0..self.window.load {
            self.ready.push(Reverse((due, self.arrived, traits)));
            self.arrived += 1;
        }
    }

    /// Ends jobs, and lets occurrences that waited for them become due.
    fn end_jobs(&mut self, now: Duration) {
        while let Some(&Reverse((end, (schedule, group)))) = self.running.peek()
            && end <= now
        {
            self.running.pop();
            if let Some(group) = group.and_then(|group| self.groups.get_mut(&group)) {
                group.running -= 1;
                self.parked -= usize::from(!group.parked.is_empty());
                self.ready.extend(group.parked.pop());
            }
            let Some(schedule) = schedule else { continue };
            self.live[schedule] -= 1;
            if self.live[schedule] == 0
                && let Some(due) = self.waiting[schedule].take()
            {
                self.live[schedule] = self.window.load;
                self.add(due, (Some(schedule), None));
            }
        }
    }

    fn start_jobs(&mut self, now: Duration) {
        let limits = self.model.flow.in_force();
        let slots = limits.max_running.map_or(u64::MAX, u64::from).min(self.model.concurrency);
        while (self.running.len() as u64) < slots
            && self.opens_at(now).is_none()
            && let Some(Reverse(job)) = self.ready.pop()
        {
            let (due, _, traits) = job;
            if let (Some(max), (_, Some(group))) = (limits.group_max_running, traits) {
                let group = self.groups.entry(group).or_default();
                if group.running >= max {
                    group.parked.push(Reverse(job));
                    self.parked += 1;
                    continue;
                }
                group.running += 1;
            }
            let at = self.window.start.saturating_add(now);
            if let Some(rate) = limits.rate {
                self.used = rate.tokens(self.used, at).take(1);
            }
            let run_time = self.model.run_times.of(self.lateness.len() as u64);
            // Zero before the due time: an occurrence may have waited while the jitter was raised.
            let late = now + self.window.start.since(due);
            let late = late.saturating_sub(self.offset_of(due));
            self.lateness.push(late);
            self.running.push(Reverse((now.saturating_add(run_time), traits)));
        }
    }

    /// Returns when the next waiting job may start, if the rate or a throttle lets none start now.
    fn opens_at(&self, now: Duration) -> Option<Duration> {
        let at = self.window.start.saturating_add(now);
        let closed_until = self.model.flow.throttled_until.filter(|until| *until > at);
        let by_rate = || {
            let tokens = self.model.flow.in_force().rate?.tokens(self.used, at);
            (tokens.left() == 0).then(|| tokens.next())
        };
        let opens_at = closed_until.or_else(by_rate).filter(|_| !self.ready.is_empty())?;
        // Not later at the end of all times.
        Some(self.offset_of(opens_at)).filter(|opens_at| *opens_at > now)
    }

    /// Notes the backlog after all that happens at `now`.
    fn measure(&mut self, now: Duration) {
        let backlog = self.ready.len() + self.parked;
        if backlog > self.backlog {
            (self.backlog, self.backlog_at, self.drained) = (backlog, Some(now), None);
        } else if backlog == 0 && self.backlog > 0 {
            self.drained.get_or_insert(now);
        }
        if now < self.window.end.since(self.window.start) {
            self.backlog_at_end = backlog;
        }
    }

    fn report(mut self) -> QueueSimulation {
        self.lateness.sort_unstable();
        let at = |offset: Option<Duration>| Some(self.window.start.saturating_add(offset?));
        QueueSimulation {
            queue: self.model.queue,
            concurrency: self.model.concurrency,
            flow: self.model.flow,
            jobs: self.arrived,
            skipped: self.skipped,
            lateness_p50: percentile(&self.lateness, 50),
            lateness_p99: percentile(&self.lateness, 99),
            lateness_max: percentile(&self.lateness, 100),
            backlog: self.backlog as u64,
            backlog_at: at(self.backlog_at),
            drained: at(self.drained),
            backlog_at_end: self.backlog_at_end as u64,
        }
    }
}

/// Returns the nearest-rank percentile.
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_times_have_the_measured_distribution() {
        let mut histogram = Histogram::default();
        for millis in [1, 1, 1, 4] {
            histogram.record(Duration::from_millis(millis));
        }
        let run_times = RunTimes::measured(&histogram).unwrap();
        let long = (0..1_000).filter(|job| run_times.of(*job) == Duration::from_micros(4_500));
        assert!((248..=252).contains(&long.count()));
        let short = (0..1_000).filter(|job| run_times.of(*job) == Duration::from_micros(1_500));
        assert!((748..=752).contains(&short.count()));
        assert!(RunTimes::measured(&Histogram::default()).is_none());
        histogram = Histogram::default();
        histogram.record(Duration::MAX);
        let run_times = RunTimes::measured(&histogram).unwrap();
        assert_eq!(run_times.of(7), Duration::from_millis(1 << 32));
    }
}
