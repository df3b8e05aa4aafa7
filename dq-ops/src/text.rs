//! Serde functions for a [`Timestamp`] as text, written by its `Display`: RFC 3339 in UTC with
//! milliseconds or, outside 1970 to 9999, Unix milliseconds followed by `ms`.

use dq_core::Timestamp;
use serde::{Deserialize, Deserializer, Serializer};

use crate::input::parse_timestamp;

pub(crate) fn serialize<S: Serializer>(
    at: &Timestamp,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(at)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Timestamp, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_timestamp(&text).map_err(serde::de::Error::custom)
}

pub(crate) mod option {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        at: &Option<Timestamp>,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        match at {
            Some(at) => serializer.collect_str(at),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<Option<Timestamp>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| parse_timestamp(&text)).transpose().map_err(serde::de::Error::custom)
    }
}
