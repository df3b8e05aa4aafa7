//! The reference, "raw": the client `lapin` alone publishes persistent messages without headers to
//! one quorum queue, with publisher confirms.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};

use crate::measure::Result;
use crate::workload::PAYLOAD;

const QUEUE: &str = "raw";

pub(super) struct Raw {
    connection: Connection,
    channel: Channel,
}

impl Raw {
    pub(super) async fn connect(url: &str) -> Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let mut quorum = FieldTable::default();
        quorum.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        channel.queue_declare(QUEUE.into(), durable, quorum).await?;
        Ok(Self { connection, channel })
    }

    /// Publishes with at most `window` unconfirmed messages.
    pub(super) async fn publish(&self, count: usize, window: usize) -> Result<Duration> {
        let payload = [0x5a; PAYLOAD];
        let mut waiting = VecDeque::with_capacity(window);
        let start = Instant::now();
        for _ in 0..count {
            if waiting.len() == window
                && let Some(oldest) = waiting.pop_front()
            {
                confirmed(oldest).await?;
            }
            let confirm = self.channel.basic_publish(
                "".into(),
                QUEUE.into(),
                BasicPublishOptions::default(),
                &payload,
                BasicProperties::default().with_delivery_mode(2),
            );
            waiting.push_back(confirm.await?);
        }
        for confirm in waiting {
            confirmed(confirm).await?;
        }
        Ok(start.elapsed())
    }

    /// Empties the queue, which has no consumer, so that its length does not slow the next turn.
    pub(super) async fn purge(&self) -> Result<()> {
        self.channel.queue_purge(QUEUE.into(), QueuePurgeOptions::default()).await?;
        Ok(())
    }

    pub(super) async fn close(&self) -> Result<()> {
        Ok(self.connection.close(200, "done".into()).await?)
    }
}

async fn confirmed(confirm: lapin::PublisherConfirm) -> Result<()> {
    match confirm.await? {
        Confirmation::Ack(None) => Ok(()),
        refused => Err(format!("the broker did not take a message: {refused:?}").into()),
    }
}
