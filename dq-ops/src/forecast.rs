//! Due-job forecasts.

use std::time::Duration;

use dq_core::{QueueForecast, QueueName, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::{OpsError, Result};
use crate::json::millis;
use crate::limits::LimitsView;
use crate::openapi;
use crate::ops::Session;
use crate::text;

/// One queue's due jobs, in equal steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct Forecast {
    /// Start of the first step: now, by the store's clock.
    #[serde(with = "text")]
    pub from: Timestamp,
    /// Step length in milliseconds.
    pub step_ms: u64,
    /// Due jobs in each step.
    pub counts: Vec<u64>,
}

/// The longest window of one queue's forecast.
const MAX_WINDOW: Duration = Duration::from_secs(366 * 86_400);

impl Session {
    /// Counts a queue's waiting jobs by due time, from now on.
    ///
    /// `steps` is clamped to 1 to 240.
    ///
    /// # Errors
    /// `Conflict` if `window` is shorter than a minute or longer than 366 days.
    pub async fn forecast(
        &self,
        queue: &QueueName,
        window: Duration,
        steps: usize,
    ) -> Result<Forecast> {
        if !(Duration::from_secs(60)..=MAX_WINDOW).contains(&window) {
            let window = dq_core::format_exact_duration(window);
            return Err(OpsError::conflict(
                format!("the window of the forecast is {window}; it must be 1m to 366d"),
                "",
            ));
        }
        let steps = steps.clamp(1, 240);
        let step = Duration::from_millis(millis(window) / steps as u64);
        let from = self.now().await?;
        let edges: Vec<Timestamp> =
            (0..=steps).map(|number| from + step * u32::try_from(number).unwrap_or(0)).collect();
        let counts = self.ops.dq().queue(queue)?.forecast(&edges).await?;
        Ok(Forecast { from, step_ms: millis(step), counts })
    }
}

/// All queues' due jobs, by hour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct Forecasts {
    /// The time by the store's clock.
    #[serde(with = "text")]
    pub at: Timestamp,
    /// Queues with jobs in the window, ordered by name. A schedule's occurrences count in its
    /// queue.
    pub queues: Vec<QueueForecastView>,
}

/// A queue in [`Forecasts`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct QueueForecastView {
    /// The queue.
    #[schema(value_type = openapi::QueueName)]
    pub queue: QueueName,
    /// Jobs already due that wait for a slot.
    pub overdue: u64,
    /// When the last of them has started; `None` if none waits, the capacity is unknown, or the
    /// queue is paused.
    #[serde(with = "text::option")]
    pub overdue_drained_by: Option<Timestamp>,
    /// Whether the queue is paused: its jobs do not start, whatever the capacity.
    pub paused: bool,
    /// Jobs that the runners can do per minute, within `max_running` and the rate; `None` if
    /// unknown.
    pub capacity_per_minute: Option<f64>,
    /// Limits for all processes; `None` if there are none. `group_max_running` is not counted, so
    /// jobs of full groups start later than forecast.
    pub limits: Option<LimitsView>,
    /// The minute with the most due jobs; `None` if no job is due.
    pub peak: Option<ForecastPeak>,
    /// The UTC hours; the window cuts the first and the last.
    pub hours: Vec<ForecastHour>,
}

/// The minute with the most due jobs in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct ForecastPeak {
    /// Start of the minute.
    #[serde(with = "text")]
    pub from: Timestamp,
    /// Jobs due in it.
    pub due: u64,
    /// When all jobs due by its end have started; `None` if the capacity is unknown or the queue is
    /// paused.
    #[serde(with = "text::option")]
    pub drained_by: Option<Timestamp>,
}

/// An hour of a [`QueueForecastView`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct ForecastHour {
    /// Start of the hour; for the first one, start of the window.
    #[serde(with = "text")]
    pub from: Timestamp,
    /// Jobs due in it.
    pub due: u64,
    /// Jobs due but not done at its end, at the current capacity; `None` if unknown.
    pub backlog: Option<u64>,
}

impl QueueForecastView {
    /// Counts jobs that become due in the window, without overdue ones.
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
            drained_by: minute.drained_by,
        });
        Self {
            queue: forecast.queue.clone(),
            overdue: forecast.overdue,
            overdue_drained_by: forecast.overdue_drained_by,
            paused: forecast.paused,
            capacity_per_minute: forecast.capacity,
            limits: LimitsView::of(&forecast.flow),
            peak,
            hours,
        }
    }
}

/// Hours since 1970-01-01T00:00Z.
fn hour_of(at: Timestamp) -> i64 {
    at.as_millis().div_euclid(3_600_000)
}

impl Session {
    /// Counts waiting jobs and schedule occurrences per queue and hour, beside the capacity.
    ///
    /// # Errors
    /// `Conflict` if `window` is shorter than a minute or longer than seven days.
    pub async fn forecasts(&self, window: Duration) -> Result<Forecasts> {
        let at = self.now().await?;
        let mut queues = self.ops.dq().forecast_all(window).await.map_err(OpsError::unfit)?;
        queues.sort_by(|a, b| a.queue.cmp(&b.queue));
        Ok(Forecasts { at, queues: queues.iter().map(QueueForecastView::new).collect() })
    }
}
