//! Copies the pending jobs and schedules of a store, and plays them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::IntoFuture;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::play::{PendingJob, QueueModel, RunTimes, ScheduleModel, Window, play};
use super::report::SimulationReport;
use crate::backend::{Backend, QueueFlow};
use crate::client::Dq;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{JobKey, JobState, JobView, QueueName, Timestamp, format_exact_duration};
use crate::schedules::{ScheduleView, is_supported, occurrence_key};

/// The longest window.
const MAX_WINDOW: Duration = Duration::from_secs(31 * 24 * 3_600);

/// The highest factor by which jobs are multiplied.
const MAX_LOAD: u32 = 1_000;

/// The default limit of jobs to play.
const MAX_JOBS: u64 = 1_000_000;

/// A simulation from [`Dq::simulate`]; `.await` plays it.
#[must_use = "nothing is played until this is awaited"]
#[derive(Debug)]
pub struct Simulation {
    dq: Dq,
    window: Duration,
    start: Option<Timestamp>,
    load: u32,
    max_jobs: u64,
    concurrency: BTreeMap<QueueName, u64>,
    default_concurrency: Option<u64>,
    run_times: BTreeMap<QueueName, Duration>,
    default_run_time: Option<Duration>,
    error: Option<Error>,
}

impl Dq {
    /// Simulates the pending jobs and schedules of all queues on a virtual clock, from now to the
    /// end of the window.
    ///
    /// It shows how late jobs start, how large each queue's backlog grows, and when it drains. It
    /// calls no handler and changes nothing in the store. Jobs left at the end of the window are
    /// played too.
    ///
    /// Run times and concurrency come from the runners announced now, unless you set them.
    ///
    /// A simulation leaves out:
    /// - failures: each job runs once, without retries, further steps, timeouts and lost leases;
    /// - decisions: guards, late policies, and jobs that handlers schedule or cancel;
    /// - a runner's limit over all queues: each queue has all its slots;
    /// - changes of a queue's limits for all processes, whose present values it keeps;
    /// - running jobs, which leave their slots free, and stores being drained;
    /// - time in the store and the network, and between an occurrence and a waiting next one.
    ///
    /// ```
    /// # use dq_core::{Dq, DurationExt};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> dq_core::Result<()> {
    /// # let dq = Dq::connect("memory:").await?;
    /// let report = dq.simulate(24.hours()).load(2).run_time("REPORT", 300.millis()).await?;
    /// println!("{report}"); // REPORT: 82000 jobs, late p50 2m, …, drained at 2026-11-22T10:38:00Z
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When awaited: `InvalidInput` if an option is out of range, a queue with jobs lacks a known
    /// concurrency or run time, or there are too many jobs; `Unsupported` if the store cannot list
    /// jobs; `Incompatible` if a later version wrote a schedule; `Unavailable` if the store cannot
    /// be reached; `Closed` after [`close`](Self::close).
    pub fn simulate(&self, window: Duration) -> Simulation {
        Simulation {
            dq: self.clone(),
            window,
            start: None,
            load: 1,
            max_jobs: MAX_JOBS,
            concurrency: BTreeMap::new(),
            default_concurrency: None,
            run_times: BTreeMap::new(),
            default_run_time: None,
            error: None,
        }
    }
}

impl Simulation {
    setters!(
        /// Each job is played this many times, 1 to 1,000. Default 1.
        load: u32,
        /// With more jobs to play, the simulation returns an error. Default 1,000,000. A job counts
        /// each time it is played, and so does a skipped occurrence.
        max_jobs: u64,
    );

    optional_setters!(
        /// The window may begin in the future; earlier jobs count as done by then. By default, it
        /// begins now, with overdue jobs as its first backlog.
        start: Timestamp,
        /// It is for queues without an announced runner.
        default_concurrency: u64,
        /// It is for queues without announced run times, where no job ran in the last five minutes.
        default_run_time: Duration,
    );

    /// Sets a queue's concurrency, over all runners together. The queue's limits stay in force.
    pub fn concurrency(mut self, queue: impl AsRef<str>, concurrency: u64) -> Self {
        if let Some(queue) = self.name(queue.as_ref()) {
            self.concurrency.insert(queue, concurrency);
        }
        self
    }

    /// Sets how long each job in a queue runs.
    pub fn run_time(mut self, queue: impl AsRef<str>, run_time: Duration) -> Self {
        if let Some(queue) = self.name(queue.as_ref()) {
            self.run_times.insert(queue, run_time);
        }
        self
    }

    fn name(&mut self, name: &str) -> Option<QueueName> {
        QueueName::new(name).map_err(|error| self.error.get_or_insert(error)).ok()
    }

    async fn run(self) -> Result<SimulationReport> {
        self.validate()?;
        let now = self.dq.backend().now().await?;
        let start = self.start.unwrap_or(now);
        if start < now {
            return Err(Error::invalid(format!(
                "the simulation starts at {start}, before now, {now} by the clock of the store"
            ))
            .remedy("leave the start out to play what is overdue"));
        }
        let end = start.saturating_add(self.window);
        let window = Window { start, end, load: u64::from(self.load) };
        let mut copy = Copied { now, window, max_jobs: self.max_jobs, pending: 0, due_earlier: 0 };
        let models = self.models(&mut copy).await?;
        // A million jobs may take a second to compute.
        let max_jobs = self.max_jobs;
        let played = tokio::task::spawn_blocking(move || {
            let mut budget = max_jobs;
            let played = models.into_iter().map(|model| play(model, window, &mut budget));
            played.collect::<Result<Vec<_>, _>>()
        });
        let queues = played.await.map_err(interrupted)?.map_err(|_| too_many(max_jobs))?;
        Ok(SimulationReport { start, end, due_earlier: copy.due_earlier, queues })
    }

    /// Checks the options without asking the store. Awaiting the simulation does so too.
    ///
    /// # Errors
    /// `InvalidInput` if an option is out of range or a name is invalid.
    pub fn validate(&self) -> Result<()> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        if self.window.is_zero() || self.window > MAX_WINDOW {
            let window = format_exact_duration(self.window);
            let message =
                format!("the window of the simulation is {window}; it must be 1ms to 31d");
            return Err(Error::invalid(message));
        }
        if !(1..=MAX_LOAD).contains(&self.load) {
            let message = format!("the load is {}; it must be 1 to {MAX_LOAD}", self.load);
            return Err(Error::invalid(message));
        }
        let is_zero = |slots: &u64| *slots == 0;
        refuse_zero("concurrency", &self.concurrency, self.default_concurrency, is_zero)?;
        refuse_zero("run time", &self.run_times, self.default_run_time, Duration::is_zero)
    }

    async fn models(&self, copy: &mut Copied) -> Result<Vec<QueueModel>> {
        let mut schedules: BTreeMap<QueueName, Vec<(JobKey, ScheduleModel)>> = BTreeMap::new();
        if is_supported(self.dq.backend().capabilities()) {
            // Leaving out an unreadable schedule would falsify the result.
            for view in self.dq.stored_schedules().await?.into_values() {
                let view = view?;
                if let Some(model) = copy.schedule(&view) {
                    let entry = (occurrence_key(&view.name)?, model);
                    schedules.entry(view.spec.queue).or_default().push(entry);
                }
            }
        }
        let mut queues: BTreeMap<QueueName, (bool, QueueFlow)> = BTreeMap::new();
        for stats in self.dq.stats().await? {
            queues.insert(stats.queue, (stats.paused, stats.flow));
        }
        for queue in schedules.keys() {
            queues.entry(queue.clone()).or_default();
        }
        let announced = self.dq.announced_work().await?;
        let (mut models, mut unknown_queues) = (Vec::new(), Vec::new());
        let queues = queues.into_iter().filter(|(queue, _)| !queue.is_reserved());
        for (queue, (paused, flow)) in queues {
            let schedules = schedules.remove(&queue).unwrap_or_default();
            let (keys, schedules): (Vec<_>, Vec<_>) = schedules.into_iter().unzip();
            let keys = keys.into_iter().zip(0..).collect();
            let pending = copy.pending(&self.dq, &queue, &keys).await?;
            if pending.is_empty() && schedules.is_empty() {
                continue;
            }
            let announced = announced.get(&queue);
            let slots = self.concurrency.get(&queue).copied();
            let slots = slots.or(announced.map(|work| work.slots)).or(self.default_concurrency);
            let run_times = self.run_times.get(&queue).copied().map(RunTimes::Fixed);
            let run_times = run_times
                .or_else(|| RunTimes::measured(&announced?.run_time))
                .or(self.default_run_time.map(RunTimes::Fixed));
            let (Some(slots), Some(run_times)) = (slots, run_times) else {
                unknown_queues.push(queue.to_string());
                continue;
            };
            let concurrency = if paused { 0 } else { slots };
            models.push(QueueModel { queue, concurrency, flow, run_times, pending, schedules });
        }
        if unknown_queues.is_empty() {
            return Ok(models);
        }
        let message = format!(
            "concurrency or run times are not known for: {}; no announced runner serves the queue, \
             or no job of it has run in the last five minutes",
            unknown_queues.join(", ")
        );
        Err(Error::invalid(message)
            .remedy("set default_concurrency and default_run_time, or those of each queue"))
    }
}

impl IntoFuture for Simulation {
    type Output = Result<SimulationReport>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.run().await.map_err(|error| error.operation("simulate")) })
    }
}

/// The parameters and counts of copying a store.
struct Copied {
    now: Timestamp,
    window: Window,
    max_jobs: u64,
    pending: u64,
    due_earlier: u64,
}

impl Copied {
    /// Returns whether the window begins after now, so that earlier jobs count as done.
    fn begins_later(&self) -> bool {
        self.window.start > self.now
    }

    fn schedule(&self, view: &ScheduleView) -> Option<ScheduleModel> {
        if view.paused || view.stopped {
            return None;
        }
        let (spec, offset) = (view.spec.clone(), view.spec.offset(&view.name));
        let (missed, cursor) = if self.begins_later() {
            // An occurrence at the start is in the window.
            let before = self.window.start - offset - Duration::from_millis(1);
            (Vec::new(), view.cursor.max(before))
        } else {
            view.occurrences_at(self.now)
        };
        let missed = missed.into_iter().map(|time| time.saturating_add(offset)).collect();
        let model = ScheduleModel { spec, offset, cursor, missed };
        let has_next = model.next_due().is_some_and(|due| due < self.window.end);
        (has_next || !model.missed.is_empty()).then_some(model)
    }

    /// Copies a queue's pending jobs due in the window. `schedules` maps keys to schedule
    /// positions.
    async fn pending(
        &mut self,
        dq: &Dq,
        queue: &QueueName,
        schedules: &HashMap<JobKey, usize>,
    ) -> Result<Vec<PendingJob>> {
        let mut pending = Vec::new();
        let mut scheduled = HashSet::new();
        let mut groups: HashMap<String, usize> = HashMap::new();
        // In the order a job passes through the states, so that none is missed.
        for state in [JobState::Scheduled, JobState::Ready] {
            let mut after = None;
            loop {
                let listing = dq.queue(queue)?.browse(state).limit(1_000).payloads(false);
                let page = listing.after(after).await?;
                let is_past = page.jobs.last().is_some_and(|job| job.job.due >= self.window.end);
                for JobView { job, .. } in page.jobs {
                    let schedule = job.key.as_ref().and_then(|key| schedules.get(key).copied());
                    // A job that becomes due meanwhile is in both listings. An occurrence job due
                    // after `now` was stored meanwhile: the schedule plays it.
                    let is_again = match state {
                        JobState::Scheduled => !scheduled.insert(job.id),
                        _ => {
                            scheduled.contains(&job.id) || job.due > self.now && schedule.is_some()
                        }
                    };
                    if is_again || job.due >= self.window.end {
                        continue;
                    }
                    if self.begins_later() && job.due < self.window.start {
                        self.due_earlier += 1;
                        continue;
                    }
                    self.pending += 1;
                    if self.pending.saturating_mul(self.window.load) > self.max_jobs {
                        return Err(too_many(self.max_jobs));
                    }
                    let next_group = groups.len();
                    let group = job.group().map(str::to_owned);
                    let group = group.map(|name| *groups.entry(name).or_insert(next_group));
                    pending.push(PendingJob { due: job.due, schedule, group });
                }
                after = page.next;
                if after.is_none() || is_past {
                    break;
                }
            }
        }
        Ok(pending)
    }
}

fn interrupted(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Closed, format!("the simulation was interrupted: {error}"))
        .remedy("try again")
}

fn refuse_zero<T>(
    what: &str,
    of_queues: &BTreeMap<QueueName, T>,
    default: Option<T>,
    is_zero: impl Fn(&T) -> bool,
) -> Result<()> {
    let queue = of_queues.iter().find(|(_, value)| is_zero(value)).map(|(queue, _)| queue.as_str());
    match queue.or(default.filter(is_zero).map(|_| "queues without one of their own")) {
        None => Ok(()),
        Some(queue) => Err(Error::invalid(format!("the {what} of {queue} is 0; it must be more"))),
    }
}

fn too_many(max_jobs: u64) -> Error {
    Error::invalid(format!("the simulation has more than {max_jobs} jobs"))
        .remedy("play a shorter window or a smaller load, or raise max_jobs in code")
}
