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
