//! Envelopes: payloads that carry headers.
//!
//! [`Verdict::Again`](super::Verdict::Again) replaces a job's payload but not its headers, so a
//! header that must change too, such as the escalation step, goes into an envelope with the
//! payload. [`Checked`](super::Checked) unpacks each job it reads.
//!
//! An envelope is a JSON string, because every store's payload codec can write one. An application
//! payload that looks like an envelope is itself wrapped.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::model::{Headers, Job, NewJob};

/// The start of envelopes of all versions.
const PREFIX: &str = "dq-envelope-";
/// The start of this version's envelopes.
const PREFIX_1: &str = "dq-envelope-1 ";

#[derive(Serialize, Deserialize)]
struct Envelope {
    /// Headers that replace the job's own.
    headers: Headers,
    payload: Content,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Content {
    Text(String),
    /// Bytes that are not UTF-8: the code points U+0000 to U+00FF.
    Latin1(String),
}

/// Puts a payload and headers into an envelope; a payload that needs none stays as it is.
pub(crate) fn wrap(payload: Bytes, headers: Headers) -> Bytes {
    if headers.is_empty() && !looks_wrapped(&payload) {
        return payload;
    }
    let payload = match str::from_utf8(&payload) {
        Ok(text) => Content::Text(text.to_owned()),
        Err(_) => Content::Latin1(payload.iter().map(|byte| char::from(*byte)).collect()),
    };
    let envelope = serde_json::to_string(&Envelope { headers, payload }).expect("text is JSON");
    serde_json::to_vec(&format!("{PREFIX_1}{envelope}")).expect("text is JSON").into()
}

/// Wraps a new job's payload if it looks like an envelope.
///
/// For code that stores application jobs without [`Checked`](super::Checked).
pub fn escape_payload(job: &mut NewJob) {
    job.payload = wrap(std::mem::take(&mut job.payload), Headers::new());
}

/// Takes payload and headers out of an envelope. A newer version's envelope stays as it is; it does
/// not decode as a payload.
pub(crate) fn unwrap(job: &mut Job) {
    let Some(Envelope { headers, payload }) = parse(&job.payload) else { return };
    for (name, value) in headers.iter() {
        job.headers.insert(name, value);
    }
    job.payload = match payload {
        Content::Text(text) => text.into(),
        Content::Latin1(text) => {
            text.chars().map(|c| u8::try_from(c).unwrap_or(b'?')).collect::<Vec<_>>().into()
        }
    };
}

fn parse(payload: &[u8]) -> Option<Envelope> {
    if !looks_wrapped(payload) {
        return None;
    }
    let text: String = serde_json::from_slice(payload).ok()?;
    serde_json::from_str(text.strip_prefix(PREFIX_1)?).ok()
}

fn looks_wrapped(payload: &[u8]) -> bool {
    payload.strip_prefix(b"\"").is_some_and(|text| text.starts_with(PREFIX.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{JobId, QueueName, Timestamp};

    fn job(payload: Bytes) -> Job {
        let queue = QueueName::new("q").unwrap();
        let mut job = Job::new(
            JobId::from_bytes([1; 16]),
            queue,
            Timestamp::EPOCH,
            Timestamp::EPOCH,
            payload,
        );
        job.headers = Headers::from_iter([("dq-step", "1"), ("other", "kept")]);
        job
    }

    #[test]
    fn headers_and_any_payload_come_back_as_they_were() {
        let again = wrap(Bytes::from_static(b"1"), Headers::from_iter([("a", "b")]));
        let mut payloads: Vec<Bytes> =
            ["", "{\"id\":1}", "\"a \\\"quoted\\\" text\"", "订单"].map(Bytes::from).to_vec();
        payloads.extend([Bytes::from_static(b"\0\xff\xfe"), again]);
        for payload in payloads {
            let wrapped = wrap(payload.clone(), Headers::from_iter([("dq-step", "2")]));
            assert!(serde_json::from_slice::<String>(&wrapped).is_ok(), "a JSON string");
            let mut job = job(wrapped);
            unwrap(&mut job);
            assert_eq!(job.payload, payload);
            assert_eq!(job.step(), 2);
            assert_eq!(job.headers.get("other"), Some("kept"));
        }
    }

    #[test]
    fn a_payload_of_an_application_is_never_taken_for_an_envelope() {
        let plain = Bytes::from_static(b"\"dq-envelop\"");
        assert_eq!(wrap(plain.clone(), Headers::new()), plain, "it needs no envelope");
        let forged = wrap(Bytes::from_static(b"1"), Headers::from_iter([("dq-step", "9")]));
        let mut job = job(wrap(forged.clone(), Headers::new()));
        unwrap(&mut job);
        assert_eq!((job.payload, job.headers.get("dq-step")), (forged, Some("1")));
    }

    #[test]
    fn an_envelope_of_a_newer_version_or_a_damaged_one_is_left_as_it_is() {
        for text in ["\"dq-envelope-2 {}\"", "\"dq-envelope-1 {}\"", "\"dq-envelope-1 "] {
            let mut job = job(Bytes::from(text));
            unwrap(&mut job);
            assert_eq!(job.payload, text);
        }
    }
}
