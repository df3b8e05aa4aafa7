//! Sends many declarations and collects the broker's refusals.
//!
//! A repeated declaration costs one small reply. For anything refused, the broker closes the
//! channel. So each channel gets at most 64 requests, all sent before the first reply, and requests
//! behind a refused one go to another channel.

use dq_core::{Error, Result};

use super::declaration::Declaration;
use crate::connect::{AmqpChannel, AmqpConnection};
use crate::error::{LostReply, Refusal, from_call, refusal};

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
}

/// Sends all declarations in order. Stops at a refused one if `goes_on` is false for it.
///
/// # Errors
/// If there is no connection, or no reply in time.
pub(super) async fn walk(
    connection: &AmqpConnection,
    declarations: &[Declaration],
    intent: Intent,
    mut goes_on: impl FnMut(&Rejected) -> bool,
) -> Result<Vec<Rejected>> {
    let is_sent = |index: &usize| intent == Intent::Declare || declarations[*index].is_checkable();
    let indexes: Vec<usize> = (0..declarations.len()).filter(is_sent).collect();
    let mut rejected = Vec::new();
    for chunk in indexes.chunks(CHUNK) {
        let mut rest = chunk;
        while !rest.is_empty() {
            let channel = connection.channel("declare").await?;
            let answered = send(connection, &channel, declarations, rest, intent).await;
            channel.close().await;
            let Err((accepted, refused)) = answered else { break };
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
            let refusal = refusal(&error);
            let broker = connection.broker_info();
            let error =
                from_call("declare", LostReply::Unavailable, Some(&required), broker, &error);
            return Err((accepted, Rejected { index, refusal, error }));
        }
    }
    Ok(())
}
