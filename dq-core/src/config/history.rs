//! A queue's setting `history`: `{ max = 1000, age = "24h" }`, or `0` for none.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

use super::duration;
use crate::model::HistoryLimit;

/// The setting as written. A queue's history replaces `[defaults]` as a whole: unset fields come from
/// [`HistoryLimit::default`]. An environment variable can still set one field in the file's table,
/// because those layers merge earlier.
#[derive(Deserialize)]
#[serde(untagged)]
enum Unparsed {
    Number(u32),
    Limit(Limit),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Limit {
    max: u32,
    #[serde(with = "duration")]
    age: Duration,
}

impl Default for Limit {
    fn default() -> Self {
        let HistoryLimit { max, age } = HistoryLimit::default();
        Self { max, age }
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<HistoryLimit>, D::Error> {
    const EXAMPLE: &str = "write it like { max = 1000, age = \"24h\" }, or 0 for no history";
    let unparsed = Option::<Unparsed>::deserialize(deserializer)
        .map_err(|_| de::Error::custom(format!("the history is not valid; {EXAMPLE}")))?;
    match unparsed {
        None => Ok(None),
        Some(Unparsed::Number(0)) => Ok(Some(HistoryLimit::OFF)),
        Some(Unparsed::Number(number)) => Err(de::Error::custom(format!(
            "the history {number} does not say for how long; {EXAMPLE}"
        ))),
        Some(Unparsed::Limit(Limit { max, age })) => Ok(Some(HistoryLimit::new(max, age))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::QueueSettings;

    fn read(json: &str) -> Result<Option<HistoryLimit>, String> {
        let settings: Result<QueueSettings, _> =
            serde_json::from_str(&format!("{{\"history\":{json}}}"));
        settings.map(|settings| settings.history).map_err(|error| error.to_string())
    }

    #[test]
    fn a_limit_is_zero_or_a_table_whose_fields_have_defaults() {
        let day = Duration::from_secs(86_400);
        let hour = Duration::from_secs(3_600);
        for (json, limit) in [
            (r#"{"max":5,"age":"1h"}"#, HistoryLimit::new(5, hour)),
            (r#"{"max":5}"#, HistoryLimit::new(5, day)),
            (r#"{"age":"1h"}"#, HistoryLimit::new(1_000, hour)),
            ("0", HistoryLimit::OFF),
        ] {
            assert_eq!(read(json), Ok(Some(limit)));
        }
    }

    #[test]
    fn other_values_are_refused_with_an_example() {
        for json in ["5", "-1", "\"24h\"", "true", r#"{"max":-1}"#, r#"{"age":1}"#, r#"{"mx":1}"#] {
            let error = read(json).unwrap_err();
            assert!(error.contains("{ max = 1000, age = \"24h\" }"), "{json}: {error}");
        }
    }
}
