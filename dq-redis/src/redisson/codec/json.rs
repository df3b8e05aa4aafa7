//! The codec `json`: JSON passes unchanged, for `TypedJsonJacksonCodec` or JSON in a `StringCodec`.

use bytes::Bytes;
use dq_core::Result;

use super::detect::wrong_codec;
use super::error::not_json;
use super::json_tree::check;

pub(super) fn encode(payload: &Bytes) -> Result<Bytes> {
    check(payload).map_err(not_json)?;
    Ok(payload.clone())
}

pub(super) fn decode(bytes: &Bytes) -> Result<Bytes> {
    check(bytes).map_err(|error| wrong_codec("json", bytes).source(error))?;
    Ok(bytes.clone())
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
    fn other_bytes_are_refused_with_the_codec_to_choose() {
        let error = encode(&Bytes::from_static(b"secret")).unwrap_err().to_string();
        assert!(error.contains("`raw`") && !error.contains("secret"), "{error}");
        let error = decode(&Bytes::from_static(b"secret")).unwrap_err().to_string();
        assert!(error.contains("`string`") && !error.contains("secret"), "{error}");
        let error = decode(&Bytes::from_static(b"\x03hell\xef")).unwrap_err().to_string();
        assert!(error.contains("`kryo5`"), "{error}");
    }
}
