//! Consumes an AMQP queue.

use std::sync::Arc;

use async_trait::async_trait;
use dq_core::{BoxError, Dq, IngressSource, QueueName, Result};
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Consumer};
use tokio_util::sync::CancellationToken;

use super::mapping::Message;
use super::settings::IngressSettings;
use super::step;
use super::target::{Taken, Target};
use crate::broker::{Broker, Link, TIMEOUT, short_setting};

const PREFETCH: u16 = 100;
/// Headers that route a message to further queues.
const ROUTING_HEADERS: [&str; 2] = ["CC", "BCC"];
/// Limit for a set-aside message's headers, in bytes. With the reason they must fit into one frame,
/// 128 KiB in RabbitMQ.
const MAX_HEADERS: usize = 64 * 1024;
/// Prefix of `reply_to` for replies without a queue of their own.
const DIRECT_REPLY: &str = "amq.rabbitmq.reply-to";

struct AmqpSource {
    target: Target,
    broker: Broker,
    from: ShortString,
    unmapped: ShortString,
}

impl AmqpSource {
    fn new(dq: &Dq, settings: IngressSettings) -> Result<Self> {
        let broker = Broker::new(&settings.url, settings.ca.as_deref())?;
        Ok(Self {
            target: Target::new(dq, "amqp", &broker.address(), &settings)?,
            broker,
            unmapped: short_setting("unmapped", settings.unmapped())?,
            from: short_setting("from", settings.from)?,
        })
    }

    /// Declares the queue for unmappable messages unless an operator has already created one,
    /// perhaps with another type.
    async fn declare_unmapped(&self, link: &Link) -> lapin::Result<()> {
        let declare = async |options| {
            // The broker closes the channel when it rejects a declaration.
            let channel = link.channel().await?;
            channel.queue_declare(self.unmapped.clone(), options, FieldTable::default()).await
        };
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        if declare(passive).await.is_err() {
            let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            declare(durable).await?;
        }
        Ok(())
    }

    async fn consume(&self, link: &Link) -> lapin::Result<(Channel, Consumer)> {
        self.declare_unmapped(link).await?;
        let channel = link.channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        let (from, options) = (self.from.clone(), BasicConsumeOptions::default());
        let consumer = channel.basic_consume(from, "".into(), options, FieldTable::default());
        let consumer = consumer.await?;
        Ok((channel, consumer))
    }

    async fn take(
        &self,
        link: &Link,
        channel: &Channel,
        mut deliveries: Vec<Delivery>,
    ) -> Result<(), BoxError> {
        let messages: Vec<Message> = deliveries.iter_mut().map(message).collect();
        let (taken, mut result) = self.target.take(&messages).await;
        for (index, taken) in taken {
            let delivery = &deliveries[index];
            // One at a time, because lapin cannot tell which of several messages in flight was
            // returned.
            if let Taken::Unmapped(reason) = taken {
                let properties = aside(&delivery.properties, &reason);
                let set_aside = self.set_aside(channel, properties, &messages[index].body);
                // The message stays unacknowledged, and must not stop the ones behind it.
                if let Err(error) = link.answer(TIMEOUT, set_aside).await {
                    result = Err(error);
                    continue;
                }
                step("set aside");
            }
            link.answer(TIMEOUT, delivery.acker.ack(BasicAckOptions::default())).await?;
            step("acknowledged");
        }
        result
    }

    async fn set_aside(
        &self,
        channel: &Channel,
        properties: BasicProperties,
        body: &[u8],
    ) -> Result<(), BoxError> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let confirm = channel
            .basic_publish("".into(), self.unmapped.clone(), options, body, properties)
            .await?
            .await?;
        match confirm {
            Confirmation::Ack(None) => Ok(()),
            _ => Err(format!("the broker has not taken a message for {}", self.unmapped).into()),
        }
    }

    async fn take_all(
        &self,
        link: &Link,
        channel: &Channel,
        consumer: Consumer,
        stop: &CancellationToken,
    ) -> Result<(), BoxError> {
        let mut batches = consumer.ready_chunks(usize::from(PREFETCH));
        loop {
            let batch = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                batch = batches.next() => batch,
                () = link.lost() => return Err("the connection to the broker has ended".into()),
            };
            let Some(batch) = batch else {
                return Err(format!("the queue {} was deleted", self.from).into());
            };
            let batch: lapin::Result<Vec<Delivery>> = batch.into_iter().collect();
            self.take(link, channel, batch?).await?;
        }
    }
}

#[async_trait]
impl IngressSource for AmqpSource {
    fn queue(&self) -> &QueueName {
        self.target.queue()
    }

    fn name(&self) -> String {
        self.target.name().to_owned()
    }

    async fn run(&self, stop: &CancellationToken) -> Result<(), BoxError> {
        let link = self.broker.connect("ingress").await?;
        let (channel, consumer) = link.answer(TIMEOUT, self.consume(&link)).await?;
        let taken = self.take_all(&link, &channel, consumer, stop).await;
        link.close().await;
        taken
    }
}

/// Properties of a message set aside. Without expiration, so that an operator sees it. Without
/// `user_id` and routing headers, because the broker would reject them or route the message further
/// with this connection's rights.
fn aside(properties: &BasicProperties, reason: &str) -> BasicProperties {
    let mut kept = BasicProperties::default().with_delivery_mode(2);
    macro_rules! keep {
        ($($get:ident $with:ident),*) => {
            $(if let Some(value) = properties.$get().clone() {
                kept = kept.$with(value);
            })*
        };
    }
    keep!(
        content_type with_content_type, content_encoding with_content_encoding,
        priority with_priority, correlation_id with_correlation_id, message_id with_message_id,
        timestamp with_timestamp, kind with_type, app_id with_app_id
    );
    if let Some(reply_to) = properties.reply_to().clone()
        && !reply_to.as_str().starts_with(DIRECT_REPLY)
    {
        kept = kept.with_reply_to(reply_to);
    }
    let mut headers = FieldTable::default();
    let (mut size, mut dropped) = (0, 0);
    for (name, value) in properties.headers().iter().flat_map(FieldTable::inner) {
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
    kept.with_headers(headers)
}

/// An upper bound for the encoded size.
fn field_size(name: &ShortString, value: &AMQPValue) -> usize {
    // Two type bytes, and a number or length.
    2 + 8 + name.as_str().len() + value_size(value)
}

fn value_size(value: &AMQPValue) -> usize {
    match value {
        AMQPValue::LongString(text) => text.len(),
        AMQPValue::ShortString(text) => text.as_str().len(),
        AMQPValue::ByteArray(bytes) => bytes.len(),
        AMQPValue::FieldArray(values) => {
            values.as_slice().iter().map(|value| 2 + 8 + value_size(value)).sum()
        }
        AMQPValue::FieldTable(table) => {
            table.inner().iter().map(|(name, value)| field_size(name, value)).sum()
        }
        _ => 0,
    }
}

/// Moves the delivery's data out.
fn message(delivery: &mut Delivery) -> Message {
    let body = std::mem::take(&mut delivery.data).into();
    let properties = &delivery.properties;
    let headers = properties.headers().iter().flat_map(FieldTable::inner);
    Message {
        id: properties.message_id().as_ref().map(|id| id.as_str().to_owned()),
        headers: headers
            .filter_map(|(name, value)| Some((name.to_string(), text(value)?)))
            .collect(),
        content_type: properties.content_type().as_ref().map(|it| it.as_str().to_owned()),
        body,
        ..Message::default()
    }
}

/// Returns text and number headers as text.
fn text(value: &AMQPValue) -> Option<String> {
    Some(match value {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok()?.to_owned(),
        AMQPValue::ShortString(text) => text.as_str().to_owned(),
        AMQPValue::ShortShortInt(number) => number.to_string(),
        AMQPValue::ShortShortUInt(number) => number.to_string(),
        AMQPValue::ShortInt(number) => number.to_string(),
        AMQPValue::ShortUInt(number) => number.to_string(),
        AMQPValue::LongInt(number) => number.to_string(),
        AMQPValue::LongUInt(number) => number.to_string(),
        AMQPValue::LongLongInt(number) => number.to_string(),
        _ => return None,
    })
}

dq_core::register_ingress! {
    name: "amqp",
    open: |dq, settings| Ok(Arc::new(AmqpSource::new(dq, settings.deserialize()?)?)),
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
        let kept = aside(&BasicProperties::default().with_headers(headers), "why");
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
        let properties = BasicProperties::default()
            .with_headers(headers)
            .with_user_id("guest".into())
            .with_expiration("1000".into())
            .with_message_id("m1".into());
        let direct = properties.clone().with_reply_to("amq.rabbitmq.reply-to.g1.x".into());
        let kept = aside(&direct, "why");
        let names: Vec<_> = kept.headers().iter().flat_map(FieldTable::inner).collect();
        let names: Vec<_> = names.into_iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["tenant", "x-dq-error"]);
        assert!(kept.user_id().is_none() && kept.expiration().is_none());
        assert!(kept.reply_to().is_none() && kept.message_id().is_some());
        assert_eq!(*kept.delivery_mode(), Some(2));
        let named = aside(&properties.with_reply_to("replies".into()), "why");
        assert!(named.reply_to().is_some());
    }
}
