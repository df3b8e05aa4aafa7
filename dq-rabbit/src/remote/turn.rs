//! Whose turn it is to open the log.
//!
//! When the last process that serves ends, or the broker restarts, all light processes find at the
//! same moment that nobody serves. If each opened the log, they would all read it at once, and keep
//! their replicas for good. So they take turns: one opens the log, the others wait and look whether
//! somebody serves by then.
//!
//! The turn is a lock on the broker: the only consumer of an exclusive queue, so the broker ends it with
//! the connection. It only saves work: without it, because a permission is missing or it takes too long,
//! a process opens the log all the same.

use std::time::Duration;

use dq_core::Result;
use lapin::Consumer;
use tokio::time::{Instant, sleep};

use super::client::{NotServed, RemoteClient};
use crate::connect::AmqpChannel;
use crate::error::{self, LostReply, Refusal, from_lapin};

/// Mean pause between two attempts to get the turn.
const PAUSE: Duration = Duration::from_millis(500);

/// A process waits for others for this number of response timeouts.
const MAX_TIMEOUTS: u32 = 12;

/// The turn to open the log. It ends when this is dropped.
pub(crate) struct Turn {
    /// `None` if it cannot be had.
    _queue: Option<(AmqpChannel, Consumer)>,
}

impl RemoteClient {
    /// How long to wait for processes that served before and have left: after a restart of the broker,
    /// this process may be connected again before they are.
    pub(crate) fn patience(&self, reason: NotServed) -> Duration {
        let has_left = reason == NotServed::NobodyServes && self.was_served();
        if has_left { self.connection.response_timeout() / 2 } else { Duration::ZERO }
    }

    /// Waits until it is the turn of this process to open the log, and at least for `patience`.
    /// `None` if another process serves by then.
    ///
    /// # Errors
    /// If there is no connection, or the broker does not reply.
    pub(crate) async fn wait_for_turn(
        &self,
        reason: NotServed,
        patience: Duration,
    ) -> Result<Option<Turn>> {
        let began = Instant::now();
        let max_wait = self.connection.response_timeout() * MAX_TIMEOUTS;
        // If processes serve and do not reply, their consumers exist, so that `is_served` proves nothing
        // until another process has had its turn.
        let mut consumers_prove = reason == NotServed::NobodyServes;
        loop {
            if reason == NotServed::NobodyServes && self.is_served("connect").await? {
                return Ok(None);
            }
            if began.elapsed() >= max_wait {
                return Ok(Some(Turn { _queue: None }));
            }
            if began.elapsed() >= patience {
                if let Some(turn) = self.take_turn().await? {
                    // The process that had it before may serve now.
                    let is_served = consumers_prove && self.is_served("connect").await?;
                    return Ok((!is_served).then_some(turn));
                }
                consumers_prove = true;
            }
            sleep(PAUSE.mul_f64(0.5 + self.entropy.fraction())).await;
        }
    }

    /// The turn, unless another process has it.
    async fn take_turn(&self) -> Result<Option<Turn>> {
        let channel = self.connection.channel("connect").await?;
        let name = self.names.turn();
        let expires = self.connection.response_timeout() * 2;
        let error = match channel.declare_exclusive_queue(name.clone(), expires).await {
            Ok(()) => match channel.consume_exclusively(name).await {
                Ok(consumer) => return Ok(Some(Turn { _queue: Some((channel, consumer)) })),
                Err(error) => error,
            },
            Err(error) => error,
        };
        channel.close().await;
        match error::refusal(&error) {
            // By another process, or by an earlier turn of this one, which is ending.
            Refusal::Locked => Ok(None),
            Refusal::NoReply => {
                let broker = self.connection.broker_info();
                Err(from_lapin("connect", LostReply::Unavailable, broker, &error))
            }
            _ => {
                tracing::debug!(%error, "this process opens the log without having its turn");
                Ok(Some(Turn { _queue: None }))
            }
        }
    }
}
