//! The text form of times in read models: RFC 3339 in UTC with milliseconds, or their number with `ms`
//! outside of the years 1970 to 9999.

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

/// The same for times that may be absent.
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
