use lapin::options::{BasicGetOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

pub(crate) async fn channel(url: &str) -> Channel {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    // The channel does not keep the connection open.
    std::mem::forget(connection);
    channel
}

pub(crate) async fn declare(channel: &Channel, queue: &str) {
    declare_with(channel, queue, FieldTable::default()).await;
}

pub(crate) async fn declare_with(channel: &Channel, queue: &str, arguments: FieldTable) {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), options, arguments).await.unwrap();
}

pub(crate) async fn take(channel: &Channel, queue: &str) -> Option<(BasicProperties, Vec<u8>)> {
    let options = BasicGetOptions { no_ack: true };
    let message = channel.basic_get(queue.into(), options).await.unwrap()?;
    Some((message.delivery.properties, message.delivery.data))
}

pub(crate) async fn take_all(channel: &Channel, queue: &str) -> Vec<(BasicProperties, Vec<u8>)> {
    let mut messages = Vec::new();
    while let Some(message) = take(channel, queue).await {
        messages.push(message);
    }
    messages
}
