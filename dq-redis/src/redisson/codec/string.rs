//! The codec `string`: `StringCodec`, a Java string in UTF-8 without quotes or length.

use bytes::Bytes;
use dq_core::Result;

use super::detect::wrong_codec;
use super::error::codec_error;
use super::json_tree::quoted;

pub(super) fn encode(payload: &Bytes) -> Result<Bytes> {
    match serde_json::from_slice::<String>(payload) {
        Ok(text) => Ok(text.into()),
        // The parser's error quotes the payload.
        Err(_) => Err(codec_error(
            "the payload is not a JSON string, and `StringCodec` writes only text",
            "choose the codec `json` for JSON documents inside strings",
        )),
    }
}

pub(super) fn decode(bytes: &Bytes) -> Result<Bytes> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(quoted(text).into()),
        Err(error) => Err(wrong_codec("string", bytes).source(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_for_handlers_and_unquoted_for_java() {
        // StringCodec.getValueEncoder writes ByteBufUtil.writeUtf8 of toString().
        for (java, json) in [
            ("hello", "\"hello\""),
            ("", "\"\""),
            ("say \"hé\"\n", r#""say \"hé\"\n""#),
            ("42", "\"42\""),
            ("{\"id\":1}", r#""{\"id\":1}""#),
        ] {
            let (java, json) =
                (Bytes::from_static(java.as_bytes()), Bytes::from_static(json.as_bytes()));
            assert_eq!(decode(&java).unwrap(), json);
            assert_eq!(encode(&json).unwrap(), java);
        }
    }

    #[test]
    fn values_other_than_text_are_refused_with_the_codec_to_choose() {
        for json in ["42", "{}", "null", "[\"x\"]"] {
            let error = encode(&Bytes::from_static(json.as_bytes())).unwrap_err();
            assert!(error.to_string().contains("`json`"), "{error}");
            assert!(!format!("{error:?}").contains("42"), "{error:?}");
        }
        let error = decode(&Bytes::from_static(b"\x03hell\xef")).unwrap_err().to_string();
        assert!(error.contains("`kryo5`"), "{error}");
    }
}
