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
