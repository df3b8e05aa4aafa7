//! The ingress type `redis-stream`: reads a Redis stream as a consumer group.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dq_core::{BoxError, Dq, IngressSource, QueueName, Result};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value, cmd, from_redis_value};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::mapping::Message;
use super::settings::IngressSettings;
use super::step;
use super::target::{Taken, Target};
use crate::redis::Server;

/// How many entries to read at once. Few, because Redis cannot limit their size.
const BATCH: usize = 10;
/// How long Redis waits for an entry.
const WAIT: Duration = Duration::from_secs(5);
/// After this time another process takes over an unacknowledged entry. The time is short because an
/// entry that is taken twice still becomes one job.
const IDLE: Duration = Duration::from_secs(5);
/// One consumer name for all processes, so that ended processes leave none behind. Takeover goes by
/// entry age, not by consumer.
const CONSUMER: &str = "dq";

/// A stream entry: its id, and its fields and values in turn.
type Entry = (String, Vec<Vec<u8>>);

struct StreamSource {
    target: Target,
    server: Server,
    from: String,
    unmapped: String,
    group: String,
}

impl StreamSource {
    fn new(dq: &Dq, settings: IngressSettings) -> Result<Self> {
        let server = Server::new(&settings.url)?;
        Ok(Self {
            target: Target::new(dq, "redis-stream", &server.address(), &settings)?,
            server,
            unmapped: settings.unmapped(),
            group: settings.group().to_owned(),
            from: settings.from,
        })
    }

    /// Stores the entries' jobs, sets aside unmappable entries, and acknowledges both.
    async fn take(
        &self,
        connection: &mut MultiplexedConnection,
        entries: Vec<Entry>,
    ) -> Result<(), BoxError> {
        let messages: Vec<Message> = entries.iter().map(message).collect();
        let (taken, mut result) = self.target.take(&messages).await;
        for (index, taken) in taken {
            let (id, fields) = &entries[index];
            // XADD and XACK are no transaction, which would acknowledge even if XADD fails.
            if let Taken::Unmapped(reason) = taken {
                let mut add = cmd("XADD");
                add.arg(&self.unmapped).arg("*");
                add.arg("dq-error").arg(reason).arg("dq-entry").arg(id).arg(fields);
                // After a failure the entry stays unacknowledged. It does not stop the next ones.
                if let Err(error) = add.query_async::<Value>(connection).await {
                    result = Err(error.into());
                    continue;
                }
                step("set aside");
            }
            let mut acknowledge = cmd("XACK");
            acknowledge.arg(&self.from).arg(&self.group).arg(id);
            let _: Value = acknowledge.query_async(connection).await?;
            step("acknowledged");
        }
        result
    }

    /// Takes over entries that were read some time ago but not acknowledged.
    async fn recover(
        &self,
        connection: &mut MultiplexedConnection,
        stop: &CancellationToken,
    ) -> Result<(), BoxError> {
        let mut start = "0-0".to_owned();
        while !stop.is_cancelled() {
            let mut claim = cmd("XAUTOCLAIM");
            claim.arg(&self.from).arg(&self.group).arg(CONSUMER);
            claim.arg(u64::try_from(IDLE.as_millis())?).arg(&start).arg("COUNT").arg(BATCH);
            let reply: Vec<Value> = claim.query_async(connection).await?;
            // The reply has the next start and the entries. Redis 7 adds the deleted ids.
            let mut parts = reply.into_iter();
            let (Some(next), Some(entries)) = (parts.next(), parts.next()) else {
                return Err("Redis has answered XAUTOCLAIM without entries".into());
            };
            // Redis 6 returns nil for a deleted entry.
            let entries: Vec<Option<Entry>> = from_redis_value(entries)?;
            let entries: Vec<Entry> = entries.into_iter().flatten().collect();
            if !entries.is_empty() {
                self.take(connection, entries).await?;
            }
            start = from_redis_value(next)?;
            if start == "0-0" {
                break;
            }
        }
        Ok(())
    }

    async fn create_group(&self, connection: &mut MultiplexedConnection) -> Result<(), BoxError> {
        let mut create = cmd("XGROUP");
        create.arg("CREATE").arg(&self.from).arg(&self.group).arg("0").arg("MKSTREAM");
        let created: RedisResult<Value> = create.query_async(connection).await;
        match created {
            Err(error) if error.code() != Some("BUSYGROUP") => Err(error.into()),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl IngressSource for StreamSource {
    fn queue(&self) -> &QueueName {
        self.target.queue()
    }

    fn name(&self) -> String {
        self.target.name().to_owned()
    }

    async fn run(&self, stop: &CancellationToken) -> Result<(), BoxError> {
        let mut connection = self.server.connect().await?;
        self.create_group(&mut connection).await?;
        let mut next_recovery = Instant::now();
        while !stop.is_cancelled() {
            if Instant::now() >= next_recovery {
                self.recover(&mut connection, stop).await?;
                next_recovery = Instant::now() + IDLE;
            }
            let mut read = cmd("XREADGROUP");
            read.arg("GROUP").arg(&self.group).arg(CONSUMER).arg("COUNT").arg(BATCH);
            read.arg("BLOCK").arg(u64::try_from(WAIT.as_millis())?);
            read.arg("STREAMS").arg(&self.from).arg(">");
            let read: Option<Vec<(String, Vec<Entry>)>> = tokio::select! {
                biased;
                read = read.query_async(&mut connection) => read?,
                () = stop.cancelled() => return Ok(()),
            };
            for (_, entries) in read.into_iter().flatten() {
                self.take(&mut connection, entries).await?;
            }
        }
        Ok(())
    }
}

/// Converts an entry. Its fields become headers. The body is the field `payload`, or else a JSON
/// object of all fields.
fn message((id, fields): &Entry) -> Message {
    let mut message = Message { id: Some(id.clone()), ..Message::default() };
    let mut payload = None;
    for field in fields.chunks_exact(2) {
        let (name, value) = (&field[0], &field[1]);
        if name == b"payload" {
            payload = Some(Bytes::copy_from_slice(value));
        } else if let (Ok(name), Ok(value)) =
            (std::str::from_utf8(name), std::str::from_utf8(value))
        {
            message.headers.insert(name.to_owned(), value.to_owned());
        } else {
            let name = String::from_utf8_lossy(name);
            message.unreadable =
                Some(format!("the field {name} is not text; use a field `payload`"));
        }
    }
    message.content_type = message.headers.get("content-type").cloned();
    match payload {
        Some(payload) => Message { body: payload, unreadable: None, ..message },
        None => Message { body: serde_json::json!(message.headers).to_string().into(), ..message },
    }
}

dq_core::register_ingress! {
    name: "redis-stream",
    open: |dq, settings| Ok(Arc::new(StreamSource::new(dq, settings.deserialize()?)?)),
}
