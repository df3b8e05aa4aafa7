//! Sends many declarations, and collects what the broker does not accept.
//!
//! To declare again with the same arguments costs one small reply. For anything else, the broker
//! closes the channel. So a channel is used for a limited number of declarations: all of its
//! requests are sent before the first reply is awaited, and those behind one that is rejected are
//! sent again on another channel.

use dq_core::{Error, Result};

use super::declaration::Declaration;
use crate::connect::{AmqpChannel, AmqpConnection};
use crate::error::{self, Refusal};

/// Number of declarations for one channel.
const CHUNK: usize = 64;

/// Whether to declare, or only to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    Declare,
    /// Needs no permissions. There is no such check for bindings, which are skipped.
    Check,
}

/// A declaration that the broker did not accept.
#[derive(Debug)]
pub(super) struct Rejected {
    /// Its index.
    pub(super) index: usize,
    pub(super) refusal: Refusal,
    pub(super) error: Error,
}

/// Sends all declarations in order; those behind a rejected one, too, unless `goes_on` is false for
/// it.
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

/// Sends all requests, then awaits the replies, which come in the same order. Fails with the first
/// rejection and the number of replies before it.
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
            let refusal = error::refusal(&error);
            let error = error::from_declaration(connection.broker_info(), &required, &error);
            return Err((accepted, Rejected { index, refusal, error }));
        }
    }
    Ok(())
}
