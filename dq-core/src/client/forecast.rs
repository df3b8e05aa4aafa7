//! Forecasts due jobs per minute, beside the runners' capacity.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::dq::Dq;
use crate::backend::{Backend, QueueStats};
use crate::error::{Error, Result};
use crate::model::{Histogram, QueueName, Timestamp};

const MINUTE: Duration = Duration::from_secs(60);

const MAX_MINUTES: u64 = 7 * 24 * 60;

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
    /// Jobs per minute that the runners can do, from slots and recent run times; `None` if no job
    /// ran lately or no runner is known.
    pub capacity: Option<f64>,
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

    /// Returns when all jobs due by a minute's end are done at the present capacity, if no more are
    /// scheduled. `None` if that is unknown or beyond a year, or the queue is paused.
    pub fn drained_by(&self, minute: &ForecastMinute) -> Option<Timestamp> {
        if self.paused {
            return None;
        }
        let (backlog, capacity) = (minute.backlog?, self.capacity?);
        let minutes = (backlog as f64 / capacity).ceil();
        let is_near = minutes <= (366 * 24 * 60) as f64;
        is_near.then(|| next_minute(minute.from) + MINUTE.mul_f64(minutes))
    }
}

impl fmt::Display for QueueForecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.queue)?;
        let Some(peak) = self.peak() else { return f.write_str("nothing is due") };
        write!(f, "{} due at {}", peak.due, peak.from)?;
        match self.drained_by(peak) {
            Some(at) => write!(f, ", drained by {at}"),
            None if self.paused => f.write_str(", the queue is paused"),
            None => f.write_str(", capacity not known"),
        }
    }
}

impl Dq {
    /// Counts due jobs by queue and minute, beside the runners' capacity.
    ///
    /// Retries, next steps and schedule occurrences count too, whatever
    /// [`overlap`](crate::RecurringSchedule::overlap) says. The capacity comes from the runners announced
    /// now and does not account for slots shared by several queues. Queues without jobs are left out,
    /// and unreadable schedules with a warning in the log.
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
            let window = humantime::format_duration(window);
            return Err(Error::invalid(format!(
                "the window of the forecast is {window}; it must be 1min to 7days"
            ))
            .operation("forecast"));
        }
        let now = self.backend().now().await?;
        let edges = minute_edges(now, minutes);
        let capacities = self.capacities().await?;
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
            let (overdue, paused) = (stats.ready, stats.paused);
            if overdue == 0 && due.iter().all(|due| *due == 0) {
                continue;
            }
            let capacity = capacities.get(&queue).copied();
            let used = if paused { Some(0.0) } else { capacity };
            let minutes = backlogs(&edges, &due, overdue, used);
            forecasts.push(QueueForecast { queue, overdue, paused, capacity, minutes });
        }
        Ok(forecasts)
    }

    /// Returns each queue's capacity in jobs per minute.
    async fn capacities(&self) -> Result<BTreeMap<QueueName, f64>> {
        let capacities = self.announced_work().await?.into_iter().filter_map(|(queue, work)| {
            let mean = work.run_time.mean()?;
            Some((queue, work.slots as f64 * MINUTE.as_secs_f64() / mean.as_secs_f64()))
        });
        Ok(capacities.collect())
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

/// Computes the backlog of each minute; `capacity` is in jobs per minute.
fn backlogs(
    edges: &[Timestamp],
    due: &[u64],
    overdue: u64,
    capacity: Option<f64>,
) -> Vec<ForecastMinute> {
    let mut waiting = overdue as f64;
    let minutes = edges.windows(2).zip(due).map(|(edge, due)| {
        let done = capacity.map(|jobs| jobs * edge[1].since(edge[0]).as_secs_f64() / 60.0);
        waiting = (waiting + *due as f64 - done.unwrap_or(0.0)).max(0.0);
        let backlog = done.map(|_| waiting.ceil() as u64);
        ForecastMinute { from: edge[0], due: *due, backlog }
    });
    minutes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_millis(second * 1_000)
    }

    #[test]
    fn a_peak_is_drained_at_the_capacity() {
        let edges = [30, 60, 120, 180, 240].map(at);
        let minutes = backlogs(&edges, &[10, 0, 41_000, 0], 200, Some(10_000.0));
        let left: Vec<_> = minutes.iter().map(|minute| minute.backlog).collect();
        assert_eq!(left, [Some(0), Some(0), Some(31_000), Some(21_000)]);
        let queue = QueueName::new("REPORT").unwrap();
        let capacity = Some(10_000.0);
        let mut forecast = QueueForecast { queue, overdue: 200, paused: false, capacity, minutes };
        let peak = forecast.peak().unwrap();
        assert_eq!((peak.from, peak.due), (at(120), 41_000));
        // 31,000 are left at 03:00, for 3.1 minutes.
        assert_eq!(forecast.drained_by(peak), Some(at(180 + 4 * 60)));
        let text = forecast.to_string();
        let wanted = "REPORT: 41000 due at 1970-01-01T00:02:00Z, drained by 1970-01-01T00:07:00Z";
        assert_eq!(text.replace(".000Z", "Z"), wanted);

        forecast.paused = true;
        assert_eq!(forecast.drained_by(forecast.peak().unwrap()), None);
        assert!(forecast.to_string().ends_with(", the queue is paused"), "{forecast}");
    }
}
