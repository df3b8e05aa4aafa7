//! Encodes payloads as JSON.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Headers;
use crate::error::{Error, ErrorKind, Result};

/// The content type of all payloads, with or without the header.
const JSON: &str = "application/json";

/// Encodes a payload as JSON, which needs no content type.
pub(crate) fn encode<T: Serialize>(payload: &T) -> Result<Bytes> {
    let bytes = serde_json::to_vec(payload).map_err(|error| {
        let name = std::any::type_name::<T>();
        Error::new(ErrorKind::Codec, format!("{name} does not encode as JSON: {error}"))
            .source(error)
    })?;
    Ok(bytes.into())
}

/// Decodes a JSON payload. The error says what was expected.
///
/// The content type must be absent or [JSON](Headers::is_json).
pub(crate) fn decode<T: DeserializeOwned>(headers: &Headers, payload: &[u8]) -> Result<T, String> {
    let content_type = headers.get(Headers::CONTENT_TYPE);
    if let Some(other) = content_type.filter(|value| !Headers::is_json(value)) {
        return Err(format!("its content type is {other:?}; expected {JSON}"));
    }
    serde_json::from_slice(payload).map_err(|error| without_values(&error))
}

/// Starts of serde's own messages, which have no value after the last `, expected `. Other authors'
/// messages may have the value anywhere.
const OWN_MESSAGES: [&str; 5] = [
    "invalid type: ",
    "invalid value: ",
    "invalid length ",
    "unknown variant `",
    "unknown field `",
];

/// Rewrites the error without the value it found, because payloads must not appear in logs.
fn without_values(error: &serde_json::Error) -> String {
    if !error.is_data() {
        return error.to_string();
    }
    let text = error.to_string();
    let is_own = OWN_MESSAGES.iter().any(|begin| text.starts_with(begin));
    // The last match, because the value before it may contain these words too.
    let expected = text.rsplit_once(", expected ").map(|(_, expected)| expected);
    // Without any fields, serde says so after the value.
    if let Some(expected) = expected.filter(|text| is_own && !text.contains("`, there are no ")) {
        return format!("expected {expected}");
    }
    let name = text.strip_prefix("missing field `").and_then(|rest| rest.split_once('`'));
    let what = match name {
        Some((name, _)) => format!("missing field `{name}`"),
        None => "an invalid value".to_owned(),
    };
    format!("{what} at line {} column {}", error.line(), error.column())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_type_is_json_with_or_without_parameters() {
        let decode_as = |content_type| {
            decode::<u8>(&Headers::from_iter([(Headers::CONTENT_TYPE, content_type)]), b"7")
        };
        for json in ["application/json", "Application/JSON; charset=utf-8", "application/json ;x"] {
            assert_eq!(decode_as(json), Ok(7), "{json}");
        }
        for other in ["text/plain", "application/jsonx", "application/json, text/plain", ""] {
            assert!(decode_as(other).unwrap_err().contains(other), "{other}");
        }
    }

    #[test]
    fn errors_say_what_was_expected_and_not_what_was_found() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct Login {
            user: String,
            pin: u32,
        }
        for (payload, expected) in [
            (r#"{"user":"bob","pin":"hunter2"}"#, "expected u32 at line 1 column 29"),
            (r#"{"user":"bob"}"#, "missing field `pin` at line 1 column 14"),
            (r#"{"hunter2":1}"#, "expected `user` or `pin` at line 1 column 10"),
            (r#"{"user":"b","pin":"x, expected hunter2"}"#, "expected u32 at line 1 column 39"),
            (r#"{"x, expected hunter2":1}"#, "expected `user` or `pin` at line 1 column 22"),
            (r#"{"user":"#, "EOF while parsing a value at line 1 column 8"),
        ] {
            let error = decode::<Login>(&Headers::new(), payload.as_bytes()).unwrap_err();
            assert_eq!(error, expected);
        }
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Tick {}
        let payload = r#"{"x, expected hunter2":1}"#;
        let error = decode::<Tick>(&Headers::new(), payload.as_bytes()).unwrap_err();
        assert_eq!(error, "an invalid value at line 1 column 22");
        for text in [
            "hunter2 is no date",
            "bad date, expected ISO 8601, found hunter2",
            "missing field separator in hunter2",
        ] {
            let custom = <serde_json::Error as serde::de::Error>::custom(text);
            assert!(!without_values(&custom).contains("hunter2"));
        }
    }
}
