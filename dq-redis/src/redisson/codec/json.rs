//! JSON text on both sides, unchanged.
//!
//! Java gets there by `TypedJsonJacksonCodec`, or by a `StringCodec` whose strings are JSON.

use bytes::Bytes;
use dq_core::Result;
use serde::de::IgnoredAny;

use super::{fault, sniff};

/// The bytes, once they are known to be JSON.
pub(super) fn encode(payload: &Bytes) -> Result<Bytes> {
    check(payload).map_err(|error| {
        fault(
            format!("the payload is not JSON: {error}"),
            "give it to Redisson as it is with the codec `raw`",
        )
    })?;
    Ok(payload.clone())
}

/// The bytes, once they are known to be JSON.
pub(super) fn decode(bytes: &Bytes) -> Result<Bytes> {
    check(bytes).map_err(|error| sniff::unlike("json", bytes).source(error))?;
    Ok(bytes.clone())
}

/// Reads without keeping; numbers of any size pass.
pub(super) fn check(bytes: &[u8]) -> serde_json::Result<()> {
    serde_json::from_slice::<IgnoredAny>(bytes).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_passes_unchanged() {
        // TypedJsonJacksonCodec of a class, a list, a number that no double holds, a string.
        for text in [r#"{"id":42, "created" : 1}"#, "[1,2]", "123456789012345678901234", "\"x\""] {
            let bytes = Bytes::from_static(text.as_bytes());
            assert_eq!(encode(&bytes).unwrap(), bytes);
            assert_eq!(decode(&bytes).unwrap(), bytes);
        }
    }

    #[test]
    fn what_is_no_json_is_refused_with_a_codec_to_choose() {
        let error = encode(&Bytes::from_static(b"secret")).unwrap_err().to_string();
        assert!(error.contains("`raw`") && !error.contains("secret"), "{error}");
        let error = decode(&Bytes::from_static(b"secret")).unwrap_err().to_string();
        assert!(error.contains("`string`") && !error.contains("secret"), "{error}");
        let error = decode(&Bytes::from_static(b"\x03hell\xef")).unwrap_err().to_string();
        assert!(error.contains("`kryo5`"), "{error}");
    }
}
