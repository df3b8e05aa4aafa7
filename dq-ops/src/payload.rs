//! Payloads as people read them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use dq_core::Headers;
use serde::{Deserialize, Serialize};

use crate::raw_json::RawJson;

/// Bytes of a payload that are shown; the rest is cut.
const MAX_SHOWN: usize = 64 * 1024;

/// A payload as JSON, text or Base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct PayloadView {
    /// The MIME type.
    pub content_type: String,
    /// The length in bytes.
    pub size: u64,
    /// Whether only the start is shown, because the payload exceeds 64 KiB.
    pub truncated: bool,
    /// The payload if it is JSON other than `null` and not truncated; only space between tokens is
    /// dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub json: Option<RawJson>,
    /// The payload if it is text and not in `json`: because it is truncated, has another content
    /// type, is invalid JSON or is the JSON `null`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The payload if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

impl PayloadView {
    pub(crate) fn new(content_type: &str, payload: &Bytes) -> Self {
        let truncated = payload.len() > MAX_SHOWN;
        let shown = payload.slice(..payload.len().min(MAX_SHOWN));
        let mut view = Self {
            content_type: content_type.to_owned(),
            size: payload.len() as u64,
            truncated,
            json: None,
            text: None,
            base64: None,
        };
        if Headers::is_json(content_type) && !truncated {
            // serde reads a `null` field back as absent.
            view.json = RawJson::parse(&shown).filter(|json| json.as_str() != "null");
        }
        if view.json.is_none() {
            match text_prefix(&shown, truncated) {
                Some(text) => view.text = Some(text.to_owned()),
                None => view.base64 = Some(STANDARD.encode(&shown)),
            }
        }
        view
    }

    /// Returns the payload as people read it: indented JSON, text, or Base64.
    #[must_use]
    pub fn shown(&self) -> String {
        let json = self.json.as_ref().map(RawJson::pretty);
        json.or_else(|| self.text.clone()).or_else(|| self.base64.clone()).unwrap_or_default()
    }
}

/// Returns the bytes as text, without a character that was cut at the end.
fn text_prefix(bytes: &[u8], truncated: bool) -> Option<&str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) if truncated && error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    }
}
