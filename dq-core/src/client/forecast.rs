//! Forecasts due jobs per minute, beside the runners' capacity.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::dq::Dq;
use crate::backend::{Backend, QueueFlow, QueueStats};
use crate::error::{Error, Result};
use crate::model::{Histogram, QueueName, Rate, RateState, Timestamp, format_exact_duration};

const MINUTE: Duration = Duration::from_secs(60);

const MAX_MINUTES: u64 = 7 * 24 * 60;

/// A later end is not given.
const MAX_DRAIN: Duration = Duration::from_secs(366 * 86_400);

/// A queue's forecast from [`Dq::forecast_all`]. `Display` writes its busiest minute.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct QueueForecast {
    /// The queue.
    pub queue: QueueName,
    /// Jobs that are already due and wait for a slot. The first backlog includes them.
    pub overdue: u64,
    /// Whether the queue is paused; then none of its jobs starts.
    pub paused: bool,
    /// When the last overdue job has started, if no more become due. `None` if none is overdue, the
    /// capacity is unknown, that is beyond a year, or the queue is paused.
    pub overdue_drained_by: Option<Timestamp>,
    /// Jobs per minute that can start: what the runners can do, from slots and recent run times,
    /// within [`flow`](Self::flow)'s `max_running` and rate. `None` if no job ran lately or no
    /// runner is known.
    pub capacity: Option<f64>,
    /// The limits of the queue. A group's limit is not counted, so jobs of full groups start later
    /// than forecast.
    pub flow: QueueFlow,
    /// The window's minutes; the first lasts from now to the next full minute.
    pub minutes: Vec<ForecastMinute>,
}

/// A minute of a [`QueueForecast`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ForecastMinute {
    /// The start of the minute.
    pub from: Timestamp,
    /// Number of jobs due in this minute.
    pub due: u64,
    /// Due jobs left at the minute's end, at the present capacity; `None` if that is unknown.
    pub backlog: Option<u64>,
    /// When all jobs due by the minute's end have started at the present capacity, if no more
    /// become due; at the earliest, its end. `None` if that is unknown or beyond a year, or the
    /// queue is paused.
    pub drained_by: Option<Timestamp>,
}

/// The sum of the runners' announcements about a queue.
#[derive(Debug, Default)]
pub(crate) struct AnnouncedWork {
    pub(crate) slots: u64,
    /// The run times of the last minutes.
    pub(crate) run_time: Histogram,
}

impl QueueForecast {
    /// Returns the minute with the most due jobs; `None` if none is due.
    pub fn peak(&self) -> Option<&ForecastMinute> {
        // `max_by_key` returns the last maximum; `rev` makes that the first.
        self.minutes.iter().rev().max_by_key(|minute| minute.due).filter(|minute| minute.due > 0)
    }
}

impl fmt::Display for QueueForecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.queue)?;
        let drained_by = match self.peak() {
            Some(peak) => {
                write!(f, "{} due at {}", peak.due, peak.from)?;
                peak.drained_by
            }
            None if self.overdue > 0 => {
                write!(f, "{} overdue", self.overdue)?;
                self.overdue_drained_by
            }
            None => return f.write_str("nothing is due"),
        };
        match drained_by {
            Some(at) => write!(f, ", drained by {at}")?,
            None if self.paused => return f.write_str(", the queue is paused"),
            None if self.capacity.is_some() => f.write_str(", not drained within a year")?,
            None => f.write_str(", capacity not known")?,
        }
        match self.flow.in_force().group_max_running {
            Some(max) => write!(f, "; group_max_running {max} is not counted"),
            None => Ok(()),
        }
    }
}

impl Dq {
    /// Counts due jobs by queue and minute, beside the runners' capacity.
    ///
    /// Limits for all processes count, except those of groups. Retries, next steps and schedule
    /// occurrences count too, whatever [`overlap`](crate::RecurringSchedule::overlap) says. The
    /// capacity comes from the runners announced now and does not account for slots shared by
    /// several queues. Queues without jobs are left out, and unreadable schedules with a warning in
    /// the log.
    ///
    /// ```
    /// # use dq_core::{Dq, DurationExt};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> dq_core::Result<()> {
    /// # let dq = Dq::connect("memory:").await?;
    /// for queue in dq.forecast_all(24.hours()).await? {
    ///     println!("{queue}"); // REPORT: 41000 due at 2026-11-22T10:30:00Z, drained by …
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` if the window is shorter than a minute or longer than a week, or cron
    /// expressions have more than a million occurrences in it; `Unsupported` if a store cannot
    /// count jobs by due time.
    pub async fn forecast_all(&self, window: Duration) -> Result<Vec<QueueForecast>> {
        let minutes = window.as_secs() / 60;
        if !(1..=MAX_MINUTES).contains(&minutes) {
            let window = format_exact_duration(window);
            return Err(Error::invalid(format!(
                "the window of the forecast is {window}; it must be 1m to 7d"
            ))
            .operation("forecast"));
        }
        let now = self.backend().now().await?;
        let edges = minute_edges(now, minutes);
        let announced = self.announced_work().await?;
        // Read first, so that an occurrence that becomes a job meanwhile is still counted.
        let mut occurrences = self.count_occurrences(&edges).await?;
        let mut queues: BTreeMap<QueueName, QueueStats> = BTreeMap::new();
        queues.extend(self.stats().await?.into_iter().map(|stats| (stats.queue.clone(), stats)));
        for queue in occurrences.keys() {
            queues.entry(queue.clone()).or_insert_with(|| QueueStats::empty(queue.clone()));
        }
        let mut forecasts = Vec::new();
        for (queue, stats) in queues.into_iter().filter(|(queue, _)| !queue.is_reserved()) {
            let mut due = occurrences.remove(&queue).unwrap_or_else(|| vec![0; edges.len() - 1]);
            if stats.scheduled + stats.ready > 0 {
                let jobs = self.shared().stores.forecast(&queue, &edges).await?;
                due.iter_mut().zip(jobs).for_each(|(due, jobs)| *due += jobs);
            }
            let (overdue, paused, flow) = (stats.ready, stats.paused, stats.flow);
            if overdue == 0 && due.iter().all(|due| *due == 0) {
                continue;
            }
            let pace = announced.get(&queue).and_then(|work| Pace::new(work, &flow));
            let capacity = pace.map(Pace::per_minute);
            let used = if paused { Some(Pace::STOPPED) } else { pace };
            let overdue_drained_by =
                used.filter(|_| overdue > 0).and_then(|pace| pace.drained_by(overdue, now));
            let minutes = backlogs(now, &edges, &due, overdue, used);
            let forecast = QueueForecast {
                queue,
                overdue,
                paused,
                overdue_drained_by,
                capacity,
                flow,
                minutes,
            };
            forecasts.push(forecast);
        }
        Ok(forecasts)
    }

    /// Sums the runners' announcements by queue. A store without announcements has none.
    pub(crate) async fn announced_work(&self) -> Result<BTreeMap<QueueName, AnnouncedWork>> {
        let mut announced: BTreeMap<QueueName, AnnouncedWork> = BTreeMap::new();
        if !self.backend().capabilities().registry {
            return Ok(announced);
        }
        for info in self.runners().await?.into_iter().filter_map(|runner| runner.info.ok()) {
            if info.stopping {
                continue;
            }
            for queue in info.queues {
                let work = announced.entry(queue.queue).or_default();
                work.slots += queue.concurrency.min(info.concurrency);
                work.run_time.merge(&queue.run_time);
            }
        }
        Ok(announced)
    }
}

/// How fast a queue's due jobs start.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Jobs per minute of the runners, within `max_running`.
    capacity: f64,
    rate: Option<Rate>,
    used: RateState,
    /// No job starts before.
    opens_at: Option<Timestamp>,
}

impl Pace {
    const STOPPED: Self = Self { capacity: 0.0, rate: None, used: RateState(0), opens_at: None };

    fn new(work: &AnnouncedWork, flow: &QueueFlow) -> Option<Self> {
        let limits = flow.in_force();
        let slots = limits.max_running.map_or(work.slots, |max| work.slots.min(max.into()));
        let capacity = slots as f64 * MINUTE.as_secs_f64() / work.run_time.mean()?.as_secs_f64();
        Some(Self { capacity, rate: limits.rate, used: flow.used, opens_at: flow.opens_at })
    }

    fn per_minute(self) -> f64 {
        let by_rate = |rate: Rate| MINUTE.as_secs_f64() / rate.interval().as_secs_f64();
        self.rate.map_or(self.capacity, |rate| self.capacity.min(by_rate(rate)))
    }

    /// Starts waiting jobs from one time until shortly before another; returns how many are left.
    fn start(&mut self, waiting: f64, from: Timestamp, to: Timestamp) -> f64 {
        let from = self.opens_at.map_or(from, |opens_at| from.max(opens_at).min(to));
        let mut started = waiting.min(self.capacity * to.since(from).as_secs_f64() / 60.0);
        if let Some(rate) = self.rate
            && from < to
        {
            let tokens = rate.tokens(self.used, from);
            started = started.min(tokens.left_at(to - Duration::from_millis(1)) as f64);
            self.used = tokens.take(started as usize);
        }
        waiting - started
    }

    /// Returns when the last of the jobs that wait at `from` has started.
    fn drained_by(self, waiting: u64, from: Timestamp) -> Option<Timestamp> {
        if waiting == 0 {
            return Some(from);
        }
        let now = from;
        let from = self.opens_at.map_or(from, |opens_at| from.max(opens_at));
        let seconds = (waiting as f64 / self.capacity * 60.0).ceil();
        let work = Duration::try_from_secs_f64(seconds).ok().filter(|work| *work <= MAX_DRAIN)?;
        let by_rate = self.rate.map(|rate| rate.tokens(self.used, from).nth(waiting));
        by_rate.max(Some(from + work)).filter(|at| at.since(now) <= MAX_DRAIN)
    }
}

/// Returns the edges of the minutes after `now`. The first minute may be shorter.
fn minute_edges(now: Timestamp, minutes: u64) -> Vec<Timestamp> {
    // Jobs due now already count as ready.
    let mut edges = vec![now + Duration::from_millis(1)];
    let mut edge = now;
    for _ in 0..minutes {
        edge = next_minute(edge);
        edges.push(edge);
    }
    edges
}

/// Returns the next full minute.
fn next_minute(time: Timestamp) -> Timestamp {
    Timestamp::from_millis((time.as_millis().div_euclid(60_000) + 1) * 60_000)
}

/// Computes the backlog of each minute, of which the first begins at `now`.
fn backlogs(
    now: Timestamp,
    edges: &[Timestamp],
    due: &[u64],
    overdue: u64,
    mut pace: Option<Pace>,
) -> Vec<ForecastMinute> {
    let (mut waiting, mut begin) = (overdue as f64, now);
    let minutes = edges.windows(2).zip(due).map(|(edge, due)| {
        let (from, to) = (edge[0], edge[1]);
        waiting += *due as f64;
        let backlog = pace.as_mut().map(|pace| {
            waiting = pace.start(waiting, begin, to);
            waiting.ceil() as u64
        });
        begin = to;
        let drained_by = pace.zip(backlog).and_then(|(pace, backlog)| pace.drained_by(backlog, to));
        ForecastMinute { from, due: *due, backlog, drained_by }
    });
    minutes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Flow;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_millis(second * 1_000)
    }

    fn pace(capacity: f64, rate: Option<&str>) -> Pace {
        let rate = rate.map(|rate| rate.parse().unwrap());
        Pace { capacity, rate, ..Pace::STOPPED }
    }

    #[test]
    fn a_peak_is_drained_at_the_capacity() {
        let edges = [30, 60, 120, 180, 240].map(at);
        let due = [10, 0, 41_000, 0];
        let minutes = backlogs(at(30), &edges, &due, 200, Some(pace(10_000.0, None)));
        let left: Vec<_> = minutes.iter().map(|minute| minute.backlog).collect();
        assert_eq!(left, [Some(0), Some(0), Some(31_000), Some(21_000)]);
        let mut forecast = QueueForecast {
            queue: QueueName::new("REPORT").unwrap(),
            overdue: 200,
            paused: false,
            overdue_drained_by: None,
            capacity: Some(10_000.0),
            flow: QueueFlow::default(),
            minutes,
        };
        let peak = forecast.peak().unwrap();
        assert_eq!((peak.from, peak.due), (at(120), 41_000));
        // 31,000 are left at 03:00, for 3.1 minutes.
        assert_eq!(peak.drained_by, Some(at(180 + 186)));
        let text = forecast.to_string();
        let wanted = "REPORT: 41000 due at 1970-01-01T00:02:00Z, drained by 1970-01-01T00:06:06Z";
        assert_eq!(text.replace(".000Z", "Z"), wanted);
        forecast.flow.declared = Flow::UNLIMITED.group_max_running(2);
        assert!(
            forecast.to_string().ends_with("; group_max_running 2 is not counted"),
            "{forecast}"
        );

        let stopped = backlogs(at(30), &edges, &due, 200, Some(Pace::STOPPED));
        assert_eq!((stopped[3].backlog, stopped[3].drained_by), (Some(41_210), None));
        (forecast.paused, forecast.minutes) = (true, stopped);
        assert!(forecast.to_string().ends_with(", the queue is paused"), "{forecast}");
    }

    #[test]
    fn a_rate_with_its_burst_is_exact() {
        let pace = pace(60_000.0, Some("10/1s burst 20"));
        assert_eq!(pace.drained_by(600, at(0)), Some(at(58)));
        assert!((pace.per_minute() - 600.0).abs() < 1e-9);
        // Of 1,200 due at 01:00, the last of the burst of 20 and of ten a second starts at 02:58.
        let edges = [0, 60, 120, 180].map(at);
        let minutes = backlogs(at(0), &edges, &[0, 1_200, 0], 0, Some(pace));
        let seen: Vec<_> =
            minutes.iter().map(|minute| (minute.backlog, minute.drained_by)).collect();
        assert_eq!(
            seen,
            [(Some(0), Some(at(60))), (Some(1_200 - 619), Some(at(178))), (Some(0), Some(at(180)))]
        );
        // The burst is used up, and later the queue is closed.
        let used = Pace { used: RateState(2_000_000), ..pace };
        assert_eq!(used.drained_by(600, at(0)), Some(at(60)));
        let closed = Pace { opens_at: Some(at(90)), ..pace };
        assert_eq!(closed.drained_by(600, at(0)), Some(at(90 + 58)));
        let minutes = backlogs(at(0), &edges, &[0, 0, 0], 600, Some(closed));
        let left: Vec<_> = minutes.iter().map(|minute| minute.backlog).collect();
        // From 01:30 to 01:59.999.
        assert_eq!(left, [Some(600), Some(600 - 319), Some(0)]);
    }

    #[test]
    fn max_running_bounds_the_slots() {
        let mut work = AnnouncedWork { slots: 16, run_time: Histogram::default() };
        work.run_time.record(Duration::from_millis(4));
        let mut flow = QueueFlow::default();
        let free = Pace::new(&work, &flow).unwrap().capacity;
        flow.overriding = Some(Flow::UNLIMITED.max_running(4));
        let limited = Pace::new(&work, &flow).unwrap().capacity;
        assert!((free / limited - 4.0).abs() < 1e-9, "{free} {limited}");
    }
}
