//! Settings for one declared schedule.

use std::time::Duration;

use dq_cron::{Cron, Interval, Times};
use serde::{Deserialize, Serialize};

use super::duration;
use super::setting_error::SettingError;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{CatchUp, Overlap, QueueName, ScheduleSpec};

/// A schedule declared by `[schedules.NAME]` in `dq.toml`, or by a handler.
///
/// ```toml
/// [schedules.nightly-report]
/// queue = "REPORT"
/// cron = "30 2 * * *"         # or: every = "90s"
/// tz = "Europe/Stockholm"     # "UTC" if it is left out
/// payload = { region = "eu" } # null if it is left out
/// schema_version = 2          # of the payload; 1 if it is left out
/// catch_up = "last"           # or "none", "all:10"
/// overlap = "skip"            # or "allow", "queue_one"
/// deadline = "1h"
/// jitter = "10s"
/// ```
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[must_use]
#[non_exhaustive]
pub struct ScheduleSettings {
    /// The jobs' queue. Required in `dq.toml`; a handler's schedule uses the handler's queue.
    pub queue: Option<QueueName>,
    /// The occurrences as a [`Cron`] expression. Set either this or [`Self::every`].
    pub cron: Option<String>,
    /// The interval between occurrences, which are its whole multiples since 1970-01-01T00:00Z.
    #[serde(with = "duration::option")]
    pub every: Option<Duration>,
    /// Time zone for [`Self::cron`], an IANA name. Default `UTC`.
    pub tz: Option<String>,
    /// Each job's payload. Default `null`, for a handler without payload.
    pub payload: Option<serde_json::Value>,
    /// Version of the payload's schema, for a handler with versions. Default: none, read as 1.
    ///
    /// The handler upgrades older versions. A handler's own schedule has its current version.
    pub schema_version: Option<u32>,
    /// What to do about missed occurrences. Default `last`.
    pub catch_up: Option<CatchUp>,
    /// What to do while an earlier occurrence's job is live. Default `skip`.
    ///
    /// With `catch_up = "all:…"` it is `allow`, because missed occurrences are scheduled at once.
    pub overlap: Option<Overlap>,
    /// How late an occurrence may be scheduled. Default: no limit.
    #[serde(with = "duration::option")]
    pub deadline: Option<Duration>,
    /// Delays all occurrences by the same part of this time, derived from the name. Default: no
    /// delay.
    #[serde(with = "duration::option")]
    pub jitter: Option<Duration>,
}

impl ScheduleSettings {
    /// Settings with every field unset.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`Self::cron`] and [`Self::tz`].
    pub fn cron(mut self, expression: impl Into<String>, zone: impl Into<String>) -> Self {
        (self.cron, self.tz) = (Some(expression.into()), Some(zone.into()));
        self
    }

    optional_setters!(
        every: Duration,
        schema_version: u32,
        catch_up: CatchUp,
        overlap: Overlap,
        deadline: Duration,
        jitter: Duration,
    );

    /// Sets [`Self::payload`].
    ///
    /// # Errors
    /// `Codec` if the payload does not encode as JSON.
    pub fn payload(mut self, payload: &impl Serialize) -> Result<Self> {
        self.payload = Some(payload_json(payload)?);
        Ok(self)
    }

    /// Builds the schedule.
    pub(crate) fn spec(&self, name: &str) -> Result<ScheduleSpec> {
        ScheduleSpec::check_name(name)?;
        let spec = self
            .checked()
            .map_err(|error| Error::invalid(format!("the schedule {name}: {error}")))?;
        spec.queue.refuse_reserved()?;
        Ok(spec.stored_form())
    }

    pub(super) fn checked(&self) -> Result<ScheduleSpec, SettingError> {
        let missing = || SettingError::new("queue", "is missing; name the queue of the jobs");
        let mut spec = ScheduleSpec::new(
            self.queue.clone().ok_or_else(missing)?,
            self.times()?,
            self.payload.clone().unwrap_or_default(),
        );
        for (field, value) in [("deadline", self.deadline), ("jitter", self.jitter)] {
            if value.is_some_and(|value| value.is_zero()) {
                return Err(SettingError::new(field, "is 0; leave it out, or set a longer time"));
            }
            // The store keeps milliseconds.
            if value.is_some_and(|value| value < Duration::from_millis(1)) {
                let problem = "is less than a millisecond; leave it out, or set a longer time";
                return Err(SettingError::new(field, problem));
            }
        }
        if self.schema_version == Some(0) {
            return Err(SettingError::new("schema_version", "is 0; the first version is 1"));
        }
        spec.schema_version = self.schema_version;
        spec.catch_up = self.catch_up.unwrap_or_default();
        spec.overlap = self.overlap.unwrap_or_else(|| spec.catch_up.default_overlap());
        (spec.deadline, spec.jitter) = (self.deadline, self.jitter);
        Ok(spec)
    }

    fn times(&self) -> Result<Times, SettingError> {
        let refused = |field| move |error| SettingError::new(field, format!("is refused: {error}"));
        match (&self.cron, self.every) {
            (Some(cron), None) => {
                let zone = self.tz.as_deref().unwrap_or("UTC");
                let field = |error: dq_cron::Error| match error.kind() {
                    dq_cron::ErrorKind::Zone => refused("tz")(error),
                    _ => refused("cron")(error),
                };
                Cron::new(cron, zone).map(Times::from).map_err(field)
            }
            (None, Some(_)) if self.tz.is_some() => {
                let problem = "belongs to `cron`; an interval has no time zone";
                Err(SettingError::new("tz", problem))
            }
            (None, Some(every)) => Interval::new(every).map(Times::from).map_err(refused("every")),
            (Some(_), Some(_)) => {
                Err(SettingError::new("every", "is given beside `cron`; keep one of them"))
            }
            (None, None) => {
                let problem = "is missing; set it, such as \"30 2 * * *\", or set `every`";
                Err(SettingError::new("cron", problem))
            }
        }
    }
}

pub(crate) fn payload_json(payload: &impl Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(payload).map_err(|error| {
        let message = format!("the payload of a schedule does not encode as JSON: {error}");
        Error::new(ErrorKind::Codec, message).source(error)
    })
}
