//! Limits of a queue that a higher layer can remove, by `"none"`.

use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};

use crate::error::Error;

/// A queue's limit, or that it has none, whatever a lower layer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueLimit<T> {
    /// No limit; `"none"` in a configuration.
    Unlimited,
    /// This limit.
    At(T),
}

impl<T> QueueLimit<T> {
    /// Returns the limit, if there is one.
    pub fn get(self) -> Option<T> {
        match self {
            Self::Unlimited => None,
            Self::At(limit) => Some(limit),
        }
    }
}

impl<T> From<T> for QueueLimit<T> {
    fn from(limit: T) -> Self {
        Self::At(limit)
    }
}

/// A value as written.
#[derive(Deserialize)]
#[serde(untagged, expecting = "neither a number nor \"none\"")]
enum Unparsed<T> {
    Number(T),
    OutOfRange(i64),
    Text(String),
}

pub(super) fn number<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<QueueLimit<T>>, D::Error> {
    match Option::deserialize(deserializer)? {
        None => Ok(None),
        Some(Unparsed::Number(limit)) => Ok(Some(QueueLimit::At(limit))),
        Some(Unparsed::OutOfRange(number)) => {
            Err(de::Error::custom(format!("{number} is too small or too large")))
        }
        Some(Unparsed::Text(text)) if text == "none" => Ok(Some(QueueLimit::Unlimited)),
        Some(Unparsed::Text(text)) => {
            Err(de::Error::custom(format!("{text:?} is neither a number nor \"none\"")))
        }
    }
}

pub(super) fn text<'de, D: Deserializer<'de>, T: FromStr<Err = Error>>(
    deserializer: D,
) -> Result<Option<QueueLimit<T>>, D::Error> {
    match Option::<String>::deserialize(deserializer)?.as_deref() {
        None => Ok(None),
        Some("none") => Ok(Some(QueueLimit::Unlimited)),
        Some(text) => {
            text.parse().map(|limit| Some(QueueLimit::At(limit))).map_err(de::Error::custom)
        }
    }
}
