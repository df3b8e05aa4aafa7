//! The codecs `string` (a Java string in UTF-8 without quotes or length) and `json` (unchanged).

use bytes::Bytes;
use dq_core::Result;

use super::detect::wrong_codec;
use super::error::{codec_error, not_json};
use super::json_tree::{check, quoted};

pub(super) fn encode_string(payload: &Bytes) -> Result<Bytes> {
    match serde_json::from_slice::<String>(payload) {
        Ok(text) => Ok(text.into()),
        // The parser's error quotes the payload.
        Err(_) => Err(codec_error(
            "the payload is not a JSON string, and `StringCodec` writes only text",
            "choose the codec `json` for JSON documents inside strings",
        )),
    }
}

pub(super) fn decode_string(bytes: &Bytes) -> Result<Bytes> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(quoted(text).into()),
        Err(error) => Err(wrong_codec("string", bytes).source(error)),
    }
}

pub(super) fn encode_json(payload: &Bytes) -> Result<Bytes> {
    check(payload).map_err(not_json)?;
    Ok(payload.clone())
}

pub(super) fn decode_json(bytes: &Bytes) -> Result<Bytes> {
    check(bytes).map_err(|error| wrong_codec("json", bytes).source(error))?;
    Ok(bytes.clone())
}
