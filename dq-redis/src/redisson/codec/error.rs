//! Codec errors. Neither their texts nor their sources contain the payload.

use dq_core::{Error, ErrorKind};

pub(super) fn codec_error(what: impl Into<String>, remedy: impl Into<String>) -> Error {
    Error::new(ErrorKind::Codec, what.into()).remedy(remedy.into())
}

pub(super) fn not_json(error: serde_json::Error) -> Error {
    codec_error(
        format!("the payload is not JSON: {error}"),
        "choose the codec `raw` to give the bytes to Redisson unchanged",
    )
}
