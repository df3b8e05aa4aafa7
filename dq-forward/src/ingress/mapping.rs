//! Reads a job's id, key and delay from the places of a message that the settings name.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{JobId, Result};
use serde_json::Value;
use uuid::Uuid;

use super::settings::IngressSettings;
use crate::error::invalid_setting;

#[derive(Debug, Clone, Default)]
pub(super) struct Message {
    pub(super) id: Option<String>,
    /// The job id, if the source chose it when it took the message.
    pub(super) job_id: Option<JobId>,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) content_type: Option<String>,
    pub(super) body: Bytes,
    /// Why the message has no body.
    pub(super) unreadable: Option<String>,
}

/// Where a message holds a value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Header(String),
    /// A JSON pointer.
    Body(String),
}

pub(super) struct Mapping {
    key: Option<Place>,
    delay: Option<Place>,
    id: Option<Place>,
    /// Hashed with each message id, which is unique only within its source.
    scope: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    /// `None` if the message has no id. Each delivery is then a new job.
    pub(super) id: Option<JobId>,
    pub(super) key: Option<String>,
    pub(super) delay: Duration,
}

impl Mapping {
    /// Creates a source's mapping; `scope` sets its messages apart from other sources' messages.
    pub(super) fn new(scope: &[&str], settings: &IngressSettings) -> Result<Self> {
        let mut bytes = Vec::new();
        for part in scope {
            bytes.extend((part.len() as u64).to_be_bytes());
            bytes.extend(part.as_bytes());
        }
        let place = |name: &str, text: &Option<String>| {
            text.as_deref().map(|text| Place::parse(name, text)).transpose()
        };
        Ok(Self {
            key: place("key", &settings.key)?,
            delay: place("delay", &settings.delay)?,
            id: place("id", &settings.id)?,
            scope: bytes,
        })
    }

    /// Reads a message's values; an error names a missing or invalid value without printing it.
    pub(super) fn map(&self, message: &Message) -> Result<Mapped, String> {
        let needs_body = [&self.key, &self.delay, &self.id]
            .into_iter()
            .any(|place| matches!(place, Some(Place::Body(_))));
        let body = match needs_body {
            true => serde_json::from_slice(&message.body).map_err(|_| "the body is not JSON")?,
            false => Value::Null,
        };
        let text = |name: &str, place: &Option<Place>| {
            let Some(place) = place else { return Ok(None) };
            match place.text(message, &body) {
                Ok(Some(text)) => Ok(Some(text)),
                Ok(None) => Err(format!("there is no {name} at {place}")),
                Err(problem) => Err(format!("the {name} at {place} {problem}")),
            }
        };
        let delay = match text("delay", &self.delay)? {
            None => Duration::ZERO,
            Some(text) => Duration::from_millis(
                text.parse().map_err(|_| "the delay is not a number of milliseconds")?,
            ),
        };
        let id = match text("id", &self.id)? {
            // Otherwise all messages with an empty id would become one job.
            Some(id) if id.is_empty() => return Err("the id is empty".to_owned()),
            Some(id) => Some(self.job_id(&id)),
            None => {
                let given = message.id.as_deref().filter(|id| !id.is_empty());
                message.job_id.or_else(|| given.map(|id| self.job_id(id)))
            }
        };
        Ok(Mapped { id, key: text("key", &self.key)?, delay })
    }

    /// Derives a job id from a message id: a UUID version 5, the same at each delivery.
    fn job_id(&self, id: &str) -> JobId {
        /// A random UUID. Never change it, nor how the scope is hashed: a message must get the same
        /// job id after an upgrade.
        const NAMESPACE: Uuid = uuid::uuid!("8f1e4b02-6c9d-4e77-a350-1dc892e60bf4");
        let name = [&self.scope, id.as_bytes()].concat();
        JobId::from_bytes(Uuid::new_v5(&NAMESPACE, &name).into_bytes())
    }
}

impl Place {
    fn parse(setting: &str, text: &str) -> Result<Self> {
        match text.strip_prefix("header:") {
            Some(name) if !name.is_empty() => Ok(Self::Header(name.to_owned())),
            None if text.starts_with('/') => Ok(Self::Body(text.to_owned())),
            _ => Err(invalid_setting(
                format!("`{setting}` is {text:?}, which is no place in a message"),
                "write header:NAME, or a JSON pointer into the body, such as /order/id",
            )),
        }
    }

    /// Returns the text or number at this place as text; `None` if there is nothing. Rejects other
    /// types, and a number that the parser may have rounded: rounding could turn two ids into one.
    fn text(&self, message: &Message, body: &Value) -> Result<Option<String>, &'static str> {
        let pointer = match self {
            Self::Header(name) => return Ok(message.headers.get(name).cloned()),
            Self::Body(pointer) => pointer,
        };
        match body.pointer(pointer) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Number(number)) if number.is_u64() || number.is_i64() => {
                Ok(Some(number.to_string()))
            }
            Some(Value::Number(_)) => Err("is not an integer of 64 bits"),
            Some(_) => Err("is neither text nor a number"),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Body(pointer) => f.write_str(pointer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(keys: &str) -> Mapping {
        scoped(&["amqp", "in"], keys)
    }

    fn scoped(scope: &[&str], keys: &str) -> Mapping {
        let text = format!("{{\"url\":\"x\",\"from\":\"f\",\"queue\":\"Q\"{keys}}}");
        Mapping::new(scope, &serde_json::from_str(&text).unwrap()).unwrap()
    }

    fn message(body: &'static str) -> Message {
        let headers = BTreeMap::from([("x-delay".to_owned(), "1500".to_owned())]);
        let id = Some("m1".to_owned());
        Message { id, headers, body: Bytes::from_static(body.as_bytes()), ..Message::default() }
    }

    #[test]
    fn mutated_messages_are_mapped_or_refused() {
        let mapping = mapping(",\"key\":\"/order/id\",\"delay\":\"/delay\",\"id\":\"header:x\"");
        let valid = [
            r#"{"order":{"id":17},"delay":1500}"#,
            r#"{"order":{"id":"a"},"delay":"900"}"#,
            r#"{"order":{"id":"-1"},"delay":0}"#,
        ];
        let is_mapped = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            let message = Message {
                id: Some(text.clone()),
                headers: BTreeMap::from([("x".to_owned(), text)]),
                body: Bytes::copy_from_slice(bytes),
                ..Message::default()
            };
            mapping.map(&message).is_ok()
        };
        dq_testkit::fuzz::check("messages of other systems", &valid, is_mapped);
        let odd = [r#"{"order":[{"id":null}],"delay":1e300}"#, r#"{"delay":"15m"}"#];
        dq_testkit::fuzz::check("odd messages", &odd, |bytes| {
            is_mapped(bytes);
            true
        });
    }

    #[test]
    fn values_come_from_headers_and_from_the_body() {
        let mapping = mapping(",\"key\":\"/order/id\",\"delay\":\"header:x-delay\"");
        let mapped = mapping.map(&message("{\"order\":{\"id\":17}}")).unwrap();
        assert_eq!((mapped.key.as_deref(), mapped.delay.as_millis()), (Some("17"), 1_500));
        let again = mapping.map(&message("{\"order\":{\"id\":\"x\"}}")).unwrap();
        assert_eq!(again.key.as_deref(), Some("x"));
        assert_eq!(mapped.id, again.id, "the id is that of the message");
        assert!(mapped.id.unwrap().to_string()[14..].starts_with('5'));
        for other in [["amqp", "inn"], ["amqpi", "n"], ["redis-list", "in"]] {
            let other = scoped(&other, "").map(&message("{}")).unwrap();
            assert_ne!(other.id, mapped.id, "ids are unique only within a source");
        }
    }

    #[test]
    fn different_ids_never_become_one() {
        let mapping = mapping(",\"id\":\"/id\"");
        let id = |body: &'static str| mapping.map(&message(body)).map(|mapped| mapped.id);
        assert_ne!(id("{\"id\":18446744073709551615}"), id("{\"id\":18446744073709551614}"));
        assert_ne!(id("{\"id\":-9223372036854775808}"), id("{\"id\":-9223372036854775807}"));
        for body in ["{\"id\":18446744073709551617}", "{\"id\":-9223372036854775809}"] {
            assert_eq!(id(body).unwrap_err(), "the id at /id is not an integer of 64 bits");
        }
        assert_eq!(id("{\"id\":\"\"}").unwrap_err(), "the id is empty");
        let by_message = scoped(&["amqp", "in"], "");
        let empty = Message { id: Some(String::new()), ..Message::default() };
        assert_eq!(by_message.map(&empty).unwrap().id, None, "each message is a job of its own");
    }

    #[test]
    fn what_is_missing_is_named_without_values() {
        let all = mapping(",\"key\":\"/k\",\"delay\":\"/d\",\"id\":\"header:i\"");
        for (body, expected) in [
            ("hunter2", "the body is not JSON"),
            ("{\"d\":1}", "there is no id at header:i"),
            ("{}", "there is no delay at /d"),
            ("{\"d\":\"hunter2\"}", "the delay is not a number of milliseconds"),
            ("{\"d\":-1}", "the delay is not a number of milliseconds"),
            ("{\"d\":1.5}", "the delay at /d is not an integer of 64 bits"),
            ("{\"d\":null}", "there is no delay at /d"),
        ] {
            assert_eq!(all.map(&message(body)).unwrap_err(), expected, "{body}");
        }
        let error = Place::parse("key", "order").unwrap_err().to_string();
        assert!(error.contains("`key` is \"order\""), "{error}");
    }
}
