//! Reads a Redis stream as a consumer group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dq_core::{BoxError, Dq, IngressSource, QueueName, Result};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value, cmd, from_redis_value};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::mapping::Message;
use super::settings::IngressSettings;
use super::step;
use super::target::{Taken, Target, stored_first};
use crate::redis::Server;

/// Small, because Redis limits the number of entries but not their size.
const BATCH: usize = 10;
const WAIT: Duration = Duration::from_secs(5);
/// After this time another process takes over an unacknowledged entry. Short, because an entry
/// taken twice is scheduled once.
const IDLE: Duration = Duration::from_secs(5);
/// One consumer name for all processes, so that ended processes leave none behind. Takeover goes by
/// entry age, not by consumer.
const CONSUMER: &str = "dq";

/// The id, and alternating fields and values; `None` if the entry was deleted.
type Entry = (String, Option<Vec<Vec<u8>>>);

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

    async fn take(
        &self,
        connection: &mut MultiplexedConnection,
        entries: Vec<Entry>,
    ) -> Result<(), BoxError> {
        step("received");
        let results = join_all(entries.iter().map(async |entry| match message(entry) {
            Some(Ok(message)) => self.target.take(&message).await,
            Some(Err(reason)) => Ok(self.target.unmapped(Some(&entry.0), reason)),
            // A deleted entry only needs an acknowledgement.
            None => Ok(Taken::Stored),
        }));
        let mut results: Vec<_> = entries.iter().zip(results.await).collect();
        stored_first(&mut results);
        let mut failure = None;
        for ((id, fields), result) in results {
            match result {
                Ok(Taken::Stored) => {}
                // Not a transaction, because that would acknowledge the entry even if `XADD` fails.
                Ok(Taken::Unmapped(reason)) => {
                    let mut add = cmd("XADD");
                    add.arg(&self.unmapped).arg("*");
                    add.arg("dq-error").arg(reason).arg("dq-entry").arg(id);
                    add.arg(fields.as_deref().unwrap_or_default());
                    let added: RedisResult<Value> = add.query_async(connection).await;
                    if let Err(error) = added {
                        failure = Some(error.into());
                        continue;
                    }
                    step("set aside");
                }
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            }
            let mut acknowledge = cmd("XACK");
            acknowledge.arg(&self.from).arg(&self.group).arg(id);
            let _: Value = acknowledge.query_async(connection).await?;
            step("acknowledged");
        }
        failure.map_or(Ok(()), Err)
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
            // Redis 7 adds a third part.
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
        let mut recovered: Option<Instant> = None;
        while !stop.is_cancelled() {
            if recovered.is_none_or(|at| at.elapsed() >= IDLE) {
                self.recover(&mut connection, stop).await?;
                recovered = Some(Instant::now());
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

/// The body is the field `payload`, or else a JSON object of all fields; the fields become headers.
/// Returns `None` for a deleted entry, and an error if a field does not fit into JSON.
fn message((id, fields): &Entry) -> Option<Result<Message, String>> {
    let fields = fields.as_ref()?;
    let mut headers = BTreeMap::new();
    let mut payload = None;
    let mut binary = None;
    for pair in fields.chunks_exact(2) {
        if pair[0] == b"payload" {
            payload = Some(Bytes::copy_from_slice(&pair[1]));
            continue;
        }
        match (std::str::from_utf8(&pair[0]), std::str::from_utf8(&pair[1])) {
            (Ok(name), Ok(value)) => drop(headers.insert(name.to_owned(), value.to_owned())),
            _ => binary = Some(String::from_utf8_lossy(&pair[0])),
        }
    }
    let body = match (payload, binary) {
        (Some(payload), _) => payload,
        (None, Some(name)) => {
            return Some(Err(format!("the field {name} is not text; use a field `payload`")));
        }
        (None, None) => serde_json::json!(headers).to_string().into(),
    };
    let content_type = headers.get("content-type").cloned();
    Some(Ok(Message { id: Some(id.clone()), job_id: None, headers, content_type, body }))
}

dq_core::register_ingress! {
    name: "redis-stream",
    open: |dq, settings| Ok(Arc::new(StreamSource::new(dq, settings.deserialize()?)?)),
}
