//! How many jobs will be due, by time.

use std::time::Duration;

use dq_core::{QueueForecast, QueueName, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::ops::Session;
use crate::text;

/// How many jobs of a queue will be due, in steps of the same length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Forecast {
    /// Where the first step begins: now, by the store's clock.
    #[serde(with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub from: Timestamp,
    /// The length of a step in milliseconds.
    pub step_ms: u64,
    /// The number of jobs in each step.
    pub counts: Vec<u64>,
}

impl Session {
    /// Counts the waiting jobs of a queue by due time, from now on. `window` is clamped to one minute
    /// to 366 days, `steps` to 1 to 240.
    ///
    /// # Errors
    /// `Unsupported` if the store cannot count jobs by due time, `Unavailable` if it cannot be
    /// reached.
    pub async fn forecast(
        &self,
        queue: &QueueName,
        window: Duration,
        steps: usize,
    ) -> Result<Forecast> {
        let window = window.clamp(Duration::from_secs(60), Duration::from_secs(366 * 86_400));
        let steps = steps.clamp(1, 240);
        let step = Duration::from_millis(
            u64::try_from(window.as_millis()).unwrap_or(u64::MAX) / steps as u64,
        );
        let from = self.now().await?;
        let edges: Vec<Timestamp> =
            (0..=steps).map(|number| from + step * u32::try_from(number).unwrap_or(0)).collect();
        let counts = self.ops.dq().queue(queue)?.forecast(&edges).await?;
        Ok(Forecast { from, step_ms: u64::try_from(step.as_millis()).unwrap_or(u64::MAX), counts })
    }
}

/// What is due in all queues, by hour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct Forecasts {
    /// The time, by the store's clock.
    #[serde(with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub at: Timestamp,
    /// The queues with jobs in the window, ordered by name. The occurrences of schedules are counted
    /// with the queue of their jobs.
    pub queues: Vec<QueueForecastView>,
}

/// A queue in [`Forecasts`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct QueueForecastView {
    /// The queue.
    #[cfg_attr(feature = "openapi", schema(value_type = crate::openapi::QueueName))]
    pub queue: QueueName,
    /// Jobs that are due already and wait for a slot.
    pub overdue: u64,
    /// Whether the queue is paused: then no job of it starts, whatever the capacity.
    pub paused: bool,
    /// How many jobs of the queue the runners can do in a minute; `None` if that is not known.
    pub capacity_per_minute: Option<f64>,
    /// The minute in which the most jobs are due; `None` if none is.
    pub peak: Option<ForecastPeak>,
    /// The hours of the clock in UTC; the first and the last are cut by the window.
    pub hours: Vec<ForecastHour>,
}

/// The minute in which the most jobs of a queue are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct ForecastPeak {
    /// The beginning of the minute.
    #[serde(with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub from: Timestamp,
    /// Number of jobs that are due in it.
    pub due: u64,
    /// When all jobs that are due until its end are done; `None` if the capacity is not known, or the
    /// queue is paused.
    #[serde(with = "text::option")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = "date-time"))]
    pub drained_by: Option<Timestamp>,
}

/// An hour of a [`QueueForecastView`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct ForecastHour {
    /// The beginning of the hour; of the first one, the beginning of the window.
    #[serde(with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub from: Timestamp,
    /// Number of jobs that are due in it.
    pub due: u64,
    /// Number of jobs that are due and not done at its end, at the present capacity; `None` if that
    /// is not known.
    pub backlog: Option<u64>,
}

impl QueueForecastView {
    /// Number of jobs that are due in the window, without those that are due already.
    #[must_use]
    pub fn due(&self) -> u64 {
        self.hours.iter().map(|hour| hour.due).sum()
    }

    fn new(forecast: &QueueForecast) -> Self {
        let mut hours: Vec<ForecastHour> = Vec::new();
        for minute in &forecast.minutes {
            let (from, due, backlog) = (minute.from, minute.due, minute.backlog);
            match hours.last_mut().filter(|hour| hour_of(hour.from) == hour_of(from)) {
                Some(hour) => (hour.due, hour.backlog) = (hour.due + due, backlog),
                None => hours.push(ForecastHour { from, due, backlog }),
            }
        }
        let peak = forecast.peak().map(|minute| ForecastPeak {
            from: minute.from,
            due: minute.due,
            drained_by: forecast.drained_by(minute),
        });
        Self {
            queue: forecast.queue.clone(),
            overdue: forecast.overdue,
            paused: forecast.paused,
            capacity_per_minute: forecast.capacity,
            peak,
            hours,
        }
    }
}

/// The number of the hour since 1970-01-01T00:00Z.
fn hour_of(at: Timestamp) -> i64 {
    at.as_millis().div_euclid(3_600_000)
}

impl Session {
    /// Counts the waiting jobs and the occurrences of schedules of all queues by hour, beside what the
    /// runners can do. `window` is clamped to one minute to seven days.
    ///
    /// # Errors
    /// As [`forecast`](Self::forecast).
    pub async fn forecasts(&self, window: Duration) -> Result<Forecasts> {
        let window = window.clamp(Duration::from_secs(60), Duration::from_secs(7 * 86_400));
        let at = self.now().await?;
        let mut queues = self.ops.dq().forecast_all(window).await?;
        queues.sort_by(|a, b| a.queue.cmp(&b.queue));
        Ok(Forecasts { at, queues: queues.iter().map(QueueForecastView::new).collect() })
    }
}
