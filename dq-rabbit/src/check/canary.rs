//! The canary: a test message through the lowest level of the delay ladder.
//!
//! The broker does not tell whether a ladder queue holds messages for too long: for quorum queues,
//! the management API has neither `head_message_timestamp` nor `idle_since`.

use std::time::Duration;

use dq_core::{Error, ErrorKind, Finding};
use futures_util::StreamExt;
use lapin::types::FieldTable;
use lapin::{BasicProperties, Consumer};

use super::BrokerCheck;
use super::findings::{check_failed, ladder_stalled, ladder_untested};
use crate::config::TopologyMode;
use crate::connect::AmqpChannel;
use crate::topology::ladder::{Route, TICK_MS};
use crate::topology::names::Topic;

/// How long the canary waits in the ladder.
const DELAY: Duration = Duration::from_millis(TICK_MS.unsigned_abs());
/// How long it may be under way.
const TIMEOUT: Duration = DELAY.saturating_add(Duration::from_secs(4));

enum CanaryError {
    /// Its queue could not be declared, or there is no channel.
    NotSent(Error),
    Refused(Error),
}

impl BrokerCheck<'_> {
    pub(super) async fn check_ladder(&self) -> Option<Finding> {
        match self.canary_returns().await {
            Ok(true) => None,
            Ok(false) => Some(ladder_stalled(TIMEOUT)),
            // With passive topology, the user may not be allowed to declare the canary's queue.
            Err(CanaryError::NotSent(error))
                if self.config.topology == TopologyMode::Passive
                    && error.kind() == ErrorKind::Config =>
            {
                Some(ladder_untested(&error, &self.connection.broker_info().prefix))
            }
            Err(CanaryError::NotSent(error) | CanaryError::Refused(error)) => {
                Some(check_failed(&error))
            }
        }
    }

    async fn canary_returns(&self) -> Result<bool, CanaryError> {
        let channel = self.connection.channel("check").await.map_err(CanaryError::NotSent)?;
        let returned = match self.send_canary(&channel).await {
            Ok(mut consumer) => match tokio::time::timeout(TIMEOUT, consumer.next()).await {
                Ok(Some(Ok(_))) => Ok(true),
                // The connection is lost, or the exchange is missing or may not be written.
                Ok(Some(Err(error))) => Err(CanaryError::Refused(self.error(&error))),
                Ok(None) | Err(_) => Ok(false),
            },
            Err(error) => Err(CanaryError::NotSent(self.error(&error))),
        };
        channel.close().await;
        returned
    }

    async fn send_canary(&self, channel: &AmqpChannel) -> lapin::Result<Consumer> {
        let names = self.topology.names();
        let queue = names.canary(self.entropy.bits() as u64);
        let expires = self.config.response_timeout * 2;
        channel.declare_exclusive_queue(queue.clone(), expires).await?;
        let topic = Topic::canary(&queue);
        channel.bind_queue(names.due(), queue.clone(), topic.binding_key()).received().await?;
        let consumer = channel.consume(queue, FieldTable::default()).await?;
        let now = self.engine.log.now();
        let Route { exchange, routing_key, delay_ms } =
            self.topology.ladder().route(&topic, now + DELAY, now);
        let mut properties = BasicProperties::default().with_delivery_mode(2);
        if let Some(delay) = delay_ms {
            let mut table = FieldTable::default();
            table.insert("x-delay".into(), delay.into());
            properties = properties.with_headers(table);
        }
        channel.publish(exchange, routing_key, false, b"", properties).await?;
        Ok(consumer)
    }
}
