//! Backoff settings that a handler, a file or a runner gives in part.

use std::time::Duration;

use serde::Deserialize;

use super::duration;
use super::setting_error::SettingError;
use crate::model::{Backoff, format_exact_duration};

/// Settings for a [`Backoff`], each optional.
///
/// `None` takes the value from the layer below, as in [`QueueSettings`](super::QueueSettings).
///
/// ```
/// use dq_core::DurationExt;
/// use dq_core::config::{BackoffSettings, QueueSettings};
///
/// let settings = QueueSettings::new().backoff(BackoffSettings::new().max(1.hours()));
/// assert_eq!(settings.backoff.initial, None);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[must_use]
#[non_exhaustive]
pub struct BackoffSettings {
    /// Delay before the second attempt. Default 1 s.
    #[serde(with = "duration::option")]
    pub initial: Option<Duration>,
    /// Factor between delays; at least 1.0. Default 2.0.
    pub factor: Option<f64>,
    /// Maximum delay. Default 10 min.
    #[serde(with = "duration::option")]
    pub max: Option<Duration>,
    /// Random spread around the delay, from 0.0 (none) to 1.0 (up to twice the delay). Default 0.2.
    pub jitter: Option<f64>,
}

impl BackoffSettings {
    /// Settings with every field unset.
    pub fn new() -> Self {
        Self::default()
    }

    optional_setters!(initial: Duration, factor: f64, max: Duration, jitter: f64);

    /// Fills unset fields from `below`.
    pub fn over(self, below: Self) -> Self {
        Self {
            initial: self.initial.or(below.initial),
            factor: self.factor.or(below.factor),
            max: self.max.or(below.max),
            jitter: self.jitter.or(below.jitter),
        }
    }

    /// Fills unset fields with defaults.
    pub fn complete(self) -> Backoff {
        let default = Backoff::default();
        Backoff {
            initial: self.initial.unwrap_or(default.initial),
            factor: self.factor.unwrap_or(default.factor),
            max: self.max.unwrap_or(default.max),
            jitter: self.jitter.unwrap_or(default.jitter),
        }
    }

    /// Checks the set fields; a layer above or below may set the others.
    pub(super) fn validate(&self) -> Result<(), SettingError> {
        if let Some(factor) = self.factor.filter(|it| !(it.is_finite() && *it >= 1.0)) {
            let problem = format!("is {factor}; it must be at least 1.0");
            return Err(SettingError::new("backoff.factor", problem));
        }
        if let Some(jitter) = self.jitter.filter(|it| !(0.0..=1.0).contains(it)) {
            let problem = format!("is {jitter}; it must be 0.0 to 1.0");
            return Err(SettingError::new("backoff.jitter", problem));
        }
        match (self.initial, self.max) {
            (Some(initial), Some(max)) if initial > max => {
                let [initial, max] = [initial, max].map(format_exact_duration);
                let problem = format!("is {initial}, longer than backoff.max, {max}");
                Err(SettingError::new("backoff.initial", problem))
            }
            _ => Ok(()),
        }
    }
}

impl From<Backoff> for BackoffSettings {
    fn from(backoff: Backoff) -> Self {
        let Backoff { initial, factor, max, jitter } = backoff;
        Self::new().initial(initial).factor(factor).max(max).jitter(jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DurationExt;

    #[test]
    fn unset_fields_come_from_the_layer_below() {
        let file = BackoffSettings::new().max(1.hours());
        let attribute = BackoffSettings::new().initial(5.seconds()).max(1.minutes()).jitter(0.0);
        let backoff = file.over(attribute).complete();
        let expected = Backoff { initial: 5.seconds(), factor: 2.0, max: 1.hours(), jitter: 0.0 };
        assert_eq!(backoff, expected);
        assert_eq!(BackoffSettings::from(backoff).complete(), backoff);
        assert_eq!(BackoffSettings::new().complete(), Backoff::default());
    }

    #[test]
    fn a_refusal_has_both_times_exactly() {
        let backoff = BackoffSettings::new().initial(10_500.millis()).max(10.seconds());
        let error = backoff.validate().unwrap_err().to_string();
        assert!(error.contains("is 10s 500ms, longer than backoff.max, 10s"), "{error}");
    }
}
