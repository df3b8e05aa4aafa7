//! Durations as people write them: `30s`, `15m`, `1h 30m`, `7d`. For `#[serde(with = …)]`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};

/// Writes a duration in the form that [`deserialize`] reads.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*duration))
}

/// Reads a duration.
///
/// # Errors
/// A sentence with an example, if the text is no duration.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(&Text::deserialize(deserializer)?).map_err(de::Error::custom)
}

/// The same for fields that may be absent.
pub mod option {
    use super::{Deserialize, Deserializer, Duration, Serializer, Text, de, parse};

    /// Writes a duration, or nothing.
    ///
    /// # Errors
    /// Those of the serializer.
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
    /// A sentence with an example, if the text is no duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Option::<Text>::deserialize(deserializer)?
            .map(|text| parse(&text).map_err(de::Error::custom))
            .transpose()
    }
}

/// The same for limits, where `"none"` means [`Duration::MAX`].
pub mod limit {
    use super::{Deserialize, Deserializer, Duration, Serializer, Text, de, parse};

    /// Writes a limit, or nothing.
    ///
    /// # Errors
    /// Those of the serializer.
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
    /// A sentence with an example, if the text is neither a duration nor `"none"`.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        match Option::<Text>::deserialize(deserializer)? {
            None => Ok(None),
            Some(Text::Text(text)) if text == "none" => Ok(Some(Duration::MAX)),
            Some(text) => parse(&text).map(Some).map_err(de::Error::custom),
        }
    }
}

/// What stands in the file; a bare number is kept apart to be refused with a good answer.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Text(String),
    Number(f64),
}

fn parse(text: &Text) -> Result<Duration, String> {
    match text {
        Text::Text(text) => humantime::parse_duration(text).map_err(|error| {
            format!(
                "{text:?} is not a duration ({error}); write it like \"30s\", \"15m\" or \"1h 30m\""
            )
        }),
        Text::Number(number) => Err(format!(
            "the duration {number} has no unit; write it like \"30s\", \"15m\" or \"1h 30m\""
        )),
    }
}
