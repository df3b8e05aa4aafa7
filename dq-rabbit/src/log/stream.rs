//! Consumers of the stream that holds the log.

use dq_core::{Error, ErrorKind, Result};
use lapin::message::Delivery;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer};

use super::shared::LogShared;
use crate::error::{LostReply, from_lapin};

/// Argument of a consumer: where it starts. Header of each message of a stream: its offset.
const OFFSET: &str = "x-stream-offset";

/// The operation that errors of reading name.
pub(super) const READ_OPERATION: &str = "read the log";

/// The message that a consumer starts at.
#[derive(Debug, Clone, Copy)]
pub(super) enum StreamStart {
    Offset(u64),
    /// The oldest message.
    First,
    /// The newest chunk of messages: the newest message, or one shortly before it.
    Last,
}

/// Starts a consumer on a channel of its own. The channel is closed when it is dropped.
pub(super) async fn consume(
    shared: &LogShared,
    start: StreamStart,
    prefetch: u16,
) -> Result<(Channel, Consumer)> {
    let failed = |error| read_error(shared, &error);
    let channel = shared.consume.channel(READ_OPERATION).await?;
    channel.basic_qos(prefetch, BasicQosOptions::default()).await.map_err(failed)?;
    let start = match start {
        StreamStart::Offset(offset) => {
            AMQPValue::LongLongInt(i64::try_from(offset).unwrap_or(i64::MAX))
        }
        StreamStart::First => AMQPValue::LongString("first".into()),
        StreamStart::Last => AMQPValue::LongString("last".into()),
    };
    let mut arguments = FieldTable::default();
    arguments.insert(OFFSET.into(), start);
    let consumer = channel
        .basic_consume(
            shared.topology.names().log(),
            "".into(),
            BasicConsumeOptions::default(),
            arguments,
        )
        .await
        .map_err(failed)?;
    Ok((channel, consumer))
}

/// The offset of a delivered message of the stream.
///
/// # Errors
/// `Incompatible` if the message does not come from a stream.
pub(super) fn offset_of(delivery: &Delivery) -> Result<u64> {
    let headers = delivery.properties.headers().as_ref();
    match headers.and_then(|headers| headers.inner().get(OFFSET)) {
        Some(AMQPValue::LongLongInt(offset)) if *offset >= 0 => Ok(offset.unsigned_abs()),
        _ => Err(Error::new(ErrorKind::Incompatible, "the queue of the log is not a stream")
            .remedy("delete that queue, or choose another `prefix`")
            .operation(READ_OPERATION)),
    }
}

/// An error of reading the log.
pub(super) fn read_error(shared: &LogShared, error: &lapin::Error) -> Error {
    from_lapin(READ_OPERATION, LostReply::Unavailable, shared.consume.broker_info(), error)
}
