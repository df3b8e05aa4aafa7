//! The ingress type `amqp`: consumes a queue of an AMQP broker.

mod set_aside;

use std::convert::identity;
use std::sync::Arc;

use async_trait::async_trait;
use dq_core::{BoxError, Dq, IngressSource, QueueName, Result};
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Consumer};
use tokio_util::sync::CancellationToken;

use super::mapping::Message;
use super::settings::IngressSettings;
use super::step;
use super::target::{Taken, Target};
use crate::broker::{Broker, Link, TIMEOUT, publish, short_setting};

/// How many messages the broker sends ahead of their acknowledgements.
const PREFETCH: u16 = 100;

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

    /// Stores the deliveries' jobs, sets aside unmappable messages, and acknowledges both.
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
            if let Taken::Unmapped(reason) = taken {
                let properties = set_aside::properties(&delivery.properties, &reason);
                let (queue, body) = (&self.unmapped, &messages[index].body);
                let default_exchange = ShortString::default();
                let published = publish(channel, &default_exchange, queue, body, properties);
                // After a failure the message stays unacknowledged. It does not stop the next ones.
                if let Err(error) = link.answer(TIMEOUT, published).await.and_then(identity) {
                    result = Err(format!("{queue}: {error}").into());
                    continue;
                }
                step("set aside");
            }
            link.answer(TIMEOUT, delivery.acker.ack(BasicAckOptions::default())).await?;
            step("acknowledged");
        }
        result
    }

    /// Takes deliveries until `stop` fires.
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

/// Converts a delivery, and moves its body out of it.
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

/// Returns a header's text or number as text; `None` for other types.
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
