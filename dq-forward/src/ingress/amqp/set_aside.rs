//! The properties of messages that cannot become jobs.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};

use crate::broker::PERSISTENT;

/// Headers that route a message to further queues.
const ROUTING_HEADERS: [&str; 2] = ["CC", "BCC"];
/// Header limit in bytes: with the reason they fit into one frame, 128 KiB in RabbitMQ.
const MAX_HEADERS: usize = 64 * 1024;
/// Prefix of `reply_to` for replies without a queue of their own.
const DIRECT_REPLY: &str = "amq.rabbitmq.reply-to";
/// Maximum bytes of a field beside name and content: two type bytes, and a number or length.
const FIELD_OVERHEAD: usize = 2 + 8;

/// Returns a message's properties in the queue for unmappable messages: without expiration, so
/// that an operator sees it; without `user_id`, which the broker might reject; without routing
/// headers, which would send it to further queues with this connection's rights.
pub(super) fn properties(original: &BasicProperties, reason: &str) -> BasicProperties {
    let mut kept = BasicProperties::default().with_delivery_mode(PERSISTENT);
    macro_rules! keep {
        ($($get:ident $with:ident),*) => {
            $(if let Some(value) = original.$get().clone() {
                kept = kept.$with(value);
            })*
        };
    }
    keep!(
        content_type with_content_type, content_encoding with_content_encoding,
        priority with_priority, correlation_id with_correlation_id, message_id with_message_id,
        timestamp with_timestamp, kind with_type, app_id with_app_id
    );
    if let Some(reply_to) = original.reply_to().clone()
        && !reply_to.as_str().starts_with(DIRECT_REPLY)
    {
        kept = kept.with_reply_to(reply_to);
    }
    kept.with_headers(headers(original, reason))
}

/// Returns the original headers as far as they fit, and `x-dq-error` with the reason.
fn headers(original: &BasicProperties, reason: &str) -> FieldTable {
    let mut headers = FieldTable::default();
    let (mut size, mut dropped) = (0, 0);
    for (name, value) in original.headers().iter().flat_map(FieldTable::inner) {
        if ROUTING_HEADERS.contains(&name.as_str()) {
            continue;
        }
        let needed = field_size(name, value);
        if size + needed <= MAX_HEADERS {
            size += needed;
            headers.insert(name.clone(), value.clone());
        } else {
            dropped += 1;
        }
    }
    let reason = match dropped {
        0 => reason.to_owned(),
        _ => format!("{reason}; headers dropped because of their size: {dropped}"),
    };
    let reason = LongString::from(reason.as_bytes());
    headers.insert("x-dq-error".into(), AMQPValue::LongString(reason));
    headers
}

/// Returns an upper bound for a header's encoded size.
fn field_size(name: &ShortString, value: &AMQPValue) -> usize {
    FIELD_OVERHEAD + name.as_str().len() + value_size(value)
}

fn value_size(value: &AMQPValue) -> usize {
    match value {
        AMQPValue::LongString(text) => text.len(),
        AMQPValue::ShortString(text) => text.as_str().len(),
        AMQPValue::ByteArray(bytes) => bytes.len(),
        AMQPValue::FieldArray(values) => {
            values.as_slice().iter().map(|value| FIELD_OVERHEAD + value_size(value)).sum()
        }
        AMQPValue::FieldTable(table) => {
            table.inner().iter().map(|(name, value)| field_size(name, value)).sum()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_set_aside_fits_into_a_frame() {
        let mut large = FieldTable::default();
        large.insert("text".into(), AMQPValue::LongString("x".repeat(60_000).into()));
        let mut headers = FieldTable::default();
        headers.insert("a".into(), AMQPValue::FieldTable(large.clone()));
        headers
            .insert("b".into(), AMQPValue::FieldArray(vec![AMQPValue::FieldTable(large)].into()));
        headers.insert("tenant".into(), AMQPValue::LongString("t1".into()));
        let kept = properties(&BasicProperties::default().with_headers(headers), "why");
        let kept = kept.headers().clone().unwrap();
        let names: Vec<_> = kept.inner().keys().map(ShortString::as_str).collect();
        assert_eq!(names, ["a", "tenant", "x-dq-error"]);
        let reason = "why; headers dropped because of their size: 1";
        assert_eq!(kept.inner()["x-dq-error"], AMQPValue::LongString(reason.into()));
    }

    #[test]
    fn a_message_that_is_set_aside_goes_nowhere_else() {
        let mut headers = FieldTable::default();
        for name in ["CC", "BCC", "tenant"] {
            headers.insert(name.into(), AMQPValue::LongString("payments".into()));
        }
        let original = BasicProperties::default()
            .with_headers(headers)
            .with_user_id("guest".into())
            .with_expiration("1000".into())
            .with_message_id("m1".into());
        let direct = original.clone().with_reply_to("amq.rabbitmq.reply-to.g1.x".into());
        let kept = properties(&direct, "why");
        let names = kept.headers().as_ref().unwrap().inner().keys().map(ShortString::as_str);
        let names: Vec<_> = names.collect();
        assert_eq!(names, ["tenant", "x-dq-error"]);
        assert!(kept.user_id().is_none() && kept.expiration().is_none());
        assert!(kept.reply_to().is_none() && kept.message_id().is_some());
        assert_eq!(*kept.delivery_mode(), Some(2));
        let named = properties(&original.with_reply_to("replies".into()), "why");
        assert!(named.reply_to().is_some());
    }
}
