//! A queue's setting `history`: `{ max = 1000, age = "24h" }`, or `0` for none.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

use super::duration;
use crate::model::HistoryLimit;

/// The setting as written. A queue's history replaces `[defaults]` as a whole: unset fields come
/// from [`HistoryLimit::default`].
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
