//! Consumers of the log's streams.

use dq_core::{Error, ErrorKind, Result};
use lapin::Consumer;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use super::generation::Generation;
use super::shared::LogShared;
use crate::connect::AmqpChannel;
use crate::error::{Permission, Refusal, from_use, refusal};

const OFFSET: &str = "x-stream-offset";

pub(super) const READ_OPERATION: &str = "read the log";

/// Starts a consumer on its own channel, which closes when dropped. It begins at this offset of the
/// stream; 0 is the first message that the stream still has. `None` if there is no stream.
pub(super) async fn consume(
    shared: &LogShared,
    stream: ShortString,
    start: u64,
    prefetch: u16,
) -> Result<Option<(AmqpChannel, Consumer)>> {
    let start = match start {
        0 => AMQPValue::LongString("first".into()),
        offset => AMQPValue::LongLongInt(i64::try_from(offset).unwrap_or(i64::MAX)),
    };
    let mut arguments = FieldTable::default();
    arguments.insert(OFFSET.into(), start);
    let channel = shared.consume.channel(READ_OPERATION).await?;
    let consuming = async {
        channel.qos(prefetch).await?;
        channel.consume(stream, arguments).await
    };
    match consuming.await {
        Ok(consumer) => Ok(Some((channel, consumer))),
        Err(error) if refusal(&error) == Refusal::NotFound => Ok(None),
        Err(error) => Err(read_error(shared, &error)),
    }
}

pub(super) async fn consume_from(
    shared: &LogShared,
    offset: u64,
    prefetch: u16,
) -> Result<Option<(AmqpChannel, Consumer)>> {
    let stream = shared.topology.names().generation(Generation::of(offset));
    consume(shared, stream, Generation::offset_in_stream(offset), prefetch).await
}

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

pub(super) fn cut_off() -> Error {
    Error::new(ErrorKind::Config, "the broker has deleted the beginning of the log with live jobs")
        .remedy(
            "remove the policy that limits the size or age of this stream. A process that still runs \
             restores the log when it closes this generation; otherwise delete the log, and runners \
             store the jobs again whose messages wait in the ladder",
        )
        .operation(READ_OPERATION)
}

pub(super) fn read_error(shared: &LogShared, error: &lapin::Error) -> Error {
    from_use(READ_OPERATION, Permission::Read, shared.consume.broker_info(), error)
}
