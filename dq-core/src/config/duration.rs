//! Human-readable durations for `#[serde(with = …)]`: `30s`, `15m`, `1h 30m`, `7d`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

/// Reads a duration; the error has an example.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(&Unparsed::deserialize(deserializer)?).map_err(de::Error::custom)
}

/// Optional durations.
pub mod option {
    use super::{Deserialize, Deserializer, Duration, Unparsed, de, parse};

    /// Reads a duration, if there is one.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text = Option::<Unparsed>::deserialize(deserializer)?;
        text.map(|text| parse(&text).map_err(de::Error::custom)).transpose()
    }
}

/// Reads a limit, if there is one; `"none"` is [`Duration::MAX`].
pub(super) fn limit<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    match Option::<Unparsed>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Unparsed::Text(text)) if text == "none" => Ok(Some(Duration::MAX)),
        Some(text) => parse(&text).map(Some).map_err(de::Error::custom),
    }
}

/// A value as written. A bare number parses so that the error can ask for a unit.
#[derive(Deserialize)]
#[serde(untagged, expecting = "not a duration; write it like \"30s\", \"15m\" or \"1h 30m\"")]
enum Unparsed {
    Text(String),
    Number(f64),
}

fn parse(value: &Unparsed) -> Result<Duration, String> {
    match value {
        // humantime's error may repeat a part of a secret.
        Unparsed::Text(text) => humantime::parse_duration(text).map_err(|_| {
            format!("{text:?} is not a duration; write it like \"30s\", \"15m\" or \"1h 30m\"")
        }),
        Unparsed::Number(number) => Err(format!(
            "the duration {number} has no unit; write it like \"30s\", \"15m\" or \"1h 30m\""
        )),
    }
}
