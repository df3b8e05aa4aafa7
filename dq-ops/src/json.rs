//! Durations as JSON numbers, and readers for `serde(deserialize_with = "…")`, which follow the
//! JSON schema rather than Rust's types.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Number;

/// Every whole number up to here has an exact `f64`.
const MAX_FLOAT: f64 = 9_007_199_254_740_991.0;

/// Converts to milliseconds; `u64::MAX` for longer durations.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A whole number, also as `3.0`: some programs write all numbers with a decimal point.
struct Whole<T>(T);

impl<'de, T: TryFrom<i64>> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = Number::deserialize(deserializer)?;
        let is_whole = |float: &f64| float.fract() == 0.0 && float.abs() <= MAX_FLOAT;
        let whole =
            number.as_i64().or_else(|| number.as_f64().filter(is_whole).map(|float| float as i64));
        let value = whole.and_then(|whole| T::try_from(whole).ok());
        let refused =
            || D::Error::custom(format_args!("{number} is not a whole number in the range"));
        value.map(Self).ok_or_else(refused)
    }
}

/// Reads an optional whole number.
///
/// # Errors
/// If the value is not a whole number or out of range.
pub fn whole<'de, T: TryFrom<i64>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Ok(Option::<Whole<T>>::deserialize(deserializer)?.map(|Whole(number)| number))
}

/// Reads an object of whole numbers.
pub(crate) fn whole_numbers<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, u64>, D::Error> {
    let numbers = BTreeMap::<String, Whole<u64>>::deserialize(deserializer)?;
    Ok(numbers.into_iter().map(|(name, Whole(number))| (name, number)).collect())
}

/// Distinguishes `null` from an absent field; a plain `Option` does not.
///
/// # Errors
/// If the value is not a `T`.
pub fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Reads an object, and rejects a list, which serde would read as fields by position.
///
/// # Errors
/// If the value is not an object.
pub fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    struct Object<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }

    deserializer.deserialize_map(Object(PhantomData))
}

/// Reads a list of objects, as [`object`] does.
///
/// # Errors
/// If the value is not a list of objects.
pub fn objects<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct Item<T>(T);

    impl<'de, T: Deserialize<'de>> Deserialize<'de> for Item<T> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            object(deserializer).map(Item)
        }
    }

    let items = Vec::<Item<T>>::deserialize(deserializer)?;
    Ok(items.into_iter().map(|Item(item)| item).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobFilter;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Body {
        #[serde(deserialize_with = "whole")]
        number: Option<u32>,
        #[serde(deserialize_with = "whole_numbers")]
        numbers: BTreeMap<String, u64>,
        #[serde(deserialize_with = "object")]
        filter: JobFilter,
    }

    #[test]
    fn a_number_with_a_point_is_whole() {
        for (text, number) in [
            ("{}", None),
            (r#"{"number": null}"#, None),
            (r#"{"number": 3}"#, Some(3)),
            (r#"{"number": 3.0}"#, Some(3)),
            (r#"{"number": 4294967295}"#, Some(u32::MAX)),
        ] {
            assert_eq!(serde_json::from_str::<Body>(text).unwrap().number, number, "{text}");
        }
        for wrong in ["3.5", "-1", "4294967296", "1e300", "\"3\"", "true", "9223372036854775808"] {
            let text = format!(r#"{{"number": {wrong}}}"#);
            assert!(serde_json::from_str::<Body>(&text).is_err(), "{text}");
        }
        let body: Body = serde_json::from_str(r#"{"numbers": {"a": 1, "b": 2.0}}"#).unwrap();
        assert_eq!(body.numbers["b"], 2);
    }

    #[test]
    fn a_list_is_no_object() {
        let body: Body = serde_json::from_str(r#"{"filter": {"error": "x"}}"#).unwrap();
        assert_eq!(body.filter.error.as_deref(), Some("x"));
        for wrong in [r#"["x"]"#, "null", "\"x\"", r#"{"eror": "x"}"#] {
            let text = format!(r#"{{"filter": {wrong}}}"#);
            assert!(serde_json::from_str::<Body>(&text).is_err(), "{text}");
        }
    }
}
