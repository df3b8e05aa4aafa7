//! Errors of codecs. Neither their texts nor their sources contain the payload.

use dq_core::{Error, ErrorKind};

/// A `Codec` error with a remedy.
pub(super) fn codec_error(what: impl Into<String>, remedy: impl Into<String>) -> Error {
    Error::new(ErrorKind::Codec, what.into()).remedy(remedy.into())
}

/// The error for a payload to be encoded that is not JSON.
pub(super) fn not_json(error: serde_json::Error) -> Error {
    codec_error(
        format!("the payload is not JSON: {error}"),
        "choose the codec `raw` to give the bytes to Redisson unchanged",
    )
}
