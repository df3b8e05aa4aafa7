//! Human-readable durations for `#[serde(with = …)]`: `30s`, `15m`, `1h 30m`, `7d`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};

/// Writes a duration as [`deserialize`] reads it.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*duration))
}

/// Reads a duration.
///
/// # Errors
/// A message with an example, if the value is not a duration.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(&Unparsed::deserialize(deserializer)?).map_err(de::Error::custom)
}

/// Optional durations.
pub mod option {
    use super::{Deserialize, Deserializer, Duration, Serializer, Unparsed, de, parse};

    /// Writes a duration, or nothing.
    pub fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => super::serialize(duration, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads a duration, if there is one.
    ///
    /// # Errors
    /// A message with an example, if the value is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Option::<Unparsed>::deserialize(deserializer)?
            .map(|text| parse(&text).map_err(de::Error::custom))
            .transpose()
    }
}

/// Limits: `"none"` means [`Duration::MAX`].
pub mod limit {
    use super::{Deserialize, Deserializer, Duration, Serializer, Unparsed, de, parse};

    /// Writes a limit, or nothing.
    pub fn serialize<S: Serializer>(
        limit: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match limit {
            Some(Duration::MAX) => serializer.serialize_str("none"),
            limit => super::option::serialize(limit, serializer),
        }
    }

    /// Reads a limit, if there is one.
    ///
    /// # Errors
    /// A message with an example, if the value is neither a duration nor `"none"`.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        match Option::<Unparsed>::deserialize(deserializer)? {
            None => Ok(None),
            Some(Unparsed::Text(text)) if text == "none" => Ok(Some(Duration::MAX)),
            Some(text) => parse(&text).map(Some).map_err(de::Error::custom),
        }
    }
}

/// A raw value from the file. It accepts bare numbers so that the error can ask for a unit.
#[derive(Deserialize)]
#[serde(untagged, expecting = "not a duration; write it like \"30s\", \"15m\" or \"1h 30m\"")]
enum Unparsed {
    Text(String),
    Number(f64),
}

fn parse(value: &Unparsed) -> Result<Duration, String> {
    match value {
        Unparsed::Text(text) => humantime::parse_duration(text).map_err(|error| {
            format!(
                "{text:?} is not a duration ({error}); write it like \"30s\", \"15m\" or \"1h 30m\""
            )
        }),
        Unparsed::Number(number) => Err(format!(
            "the duration {number} has no unit; write it like \"30s\", \"15m\" or \"1h 30m\""
        )),
    }
}
