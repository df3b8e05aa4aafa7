//! Sends many declarations and collects the broker's refusals.
//!
//! A repeated declaration costs one small reply. For anything refused, the broker closes the
//! channel. So each channel gets at most 64 requests, all sent before the first reply, and requests
//! behind a refused one go to another channel. If the connection breaks, those without a reply are
//! sent again on the next one.

use dq_core::{Error, Result};
use tokio::time::Instant;

use super::declaration::Declaration;
use crate::connect::{AmqpChannel, AmqpConnection};
use crate::error::{LostReply, Refusal, from_call, is_lost, refusal};

const CHUNK: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    Declare,
    /// Only asks whether it exists. Needs no permissions, and skips bindings.
    Check,
}

#[derive(Debug)]
pub(super) struct Rejected {
    pub(super) index: usize,
    pub(super) refusal: Refusal,
    pub(super) error: Error,
    /// Whether the connection broke instead of a reply.
    is_lost: bool,
}

/// Sends all declarations in order. Stops at a refused one if `goes_on` is false for it.
///
/// # Errors
/// If there is no connection, or no reply in time. A broken connection is an error after the
/// response timeout.
pub(super) async fn walk(
    connection: &AmqpConnection,
    declarations: &[Declaration],
    intent: Intent,
    mut goes_on: impl FnMut(&Rejected) -> bool,
) -> Result<Vec<Rejected>> {
    let is_sent = |index: &usize| intent == Intent::Declare || declarations[*index].is_checkable();
    let indexes: Vec<usize> = (0..declarations.len()).filter(is_sent).collect();
    let deadline = Instant::now() + connection.response_timeout();
    let mut rejected = Vec::new();
    for chunk in indexes.chunks(CHUNK) {
        let mut rest = chunk;
        while !rest.is_empty() {
            let channel = connection.channel("declare").await?;
            let answered = send(connection, &channel, declarations, rest, intent).await;
            channel.close().await;
            let Err((accepted, refused)) = answered else { break };
            if refused.is_lost && Instant::now() < deadline {
                rest = &rest[accepted..];
                continue;
            }
            if refused.refusal == Refusal::NoReply {
                return Err(refused.error);
            }
            rest = &rest[accepted + 1..];
            let goes_on = goes_on(&refused);
            rejected.push(refused);
            if !goes_on {
                return Ok(rejected);
            }
        }
    }
    Ok(rejected)
}

/// Fails with the first refusal and the number of replies before it.
async fn send(
    connection: &AmqpConnection,
    channel: &AmqpChannel,
    declarations: &[Declaration],
    indexes: &[usize],
    intent: Intent,
) -> Result<(), (usize, Rejected)> {
    let request = |index: &usize| declarations[*index].send(channel, intent == Intent::Check);
    let replies: Vec<_> = indexes.iter().map(request).collect();
    for (accepted, (&index, reply)) in indexes.iter().zip(replies).enumerate() {
        if let Err(error) = reply.received().await {
            let required = |object: &str| declarations[index].required_permission(object);
            let (refusal, is_lost) = (refusal(&error), is_lost(&error));
            let broker = connection.broker_info();
            let error =
                from_call("declare", LostReply::Unavailable, Some(&required), broker, &error);
            return Err((accepted, Rejected { index, refusal, error, is_lost }));
        }
    }
    Ok(())
}
