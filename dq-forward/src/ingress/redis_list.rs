//! The ingress type `redis-list`: takes elements from a Redis list.
//!
//! Each element first moves to a second list, `<from>.taking`, together with its job id. A process
//! that dies before it stores the job does not lose it, and one that dies afterwards does not store
//! it twice.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dq_core::{BoxError, Dq, IngressSource, JobId, QueueName, Result};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value, cmd};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::mapping::Message;
use super::settings::IngressSettings;
use super::step;
use super::target::{Taken, Target};
use crate::error::invalid_setting;
use crate::redis::Server;

/// How many elements one script call moves at most.
const BATCH: usize = 100;
/// How long Redis waits for an element. The response timeout, which also applies to a blocking
/// command, must be longer.
const WAIT: Duration = Duration::from_secs(5);
/// How often to take over elements that another process or a failed run left behind.
const RECOVERY_INTERVAL: Duration = Duration::from_secs(30);

/// Moves elements from list 1 to list 2, prefixing each with an id: at least one, and at most 1
/// MiB. Redis does not undo a script that fails midway, so `RPOP` comes last.
const TAKE: &str = "\
local taken, bytes = {}, 0
for i = 1, #ARGV do
  local element = redis.call('LINDEX', KEYS[1], -1)
  if not element then break end
  bytes = bytes + string.len(element)
  if i > 1 and bytes > 1048576 then break end
  taken[i] = ARGV[i] .. element
  redis.call('LPUSH', KEYS[2], taken[i])
  redis.call('RPOP', KEYS[1])
end
return taken";

/// Returns up to `ARGV[1]` of the list's oldest elements: at least one, and at most 1 MiB.
const LEFT: &str = "\
local left, bytes = {}, 0
for i = 1, tonumber(ARGV[1]) do
  local element = redis.call('LINDEX', KEYS[1], -i)
  if not element then break end
  bytes = bytes + string.len(element)
  if i > 1 and bytes > 1048576 then break end
  left[i] = element
end
return left";

/// Moves an element from list 1 to list 2 without its id, unless another process already did.
const SET_ASIDE: &str = "\
if redis.call('LPOS', KEYS[1], ARGV[1]) then
  redis.call('LPUSH', KEYS[2], ARGV[2])
  redis.call('LREM', KEYS[1], 1, ARGV[1])
end";

struct ListSource {
    target: Target,
    server: Server,
    from: String,
    taking: String,
    unmapped: String,
}

impl ListSource {
    fn new(dq: &Dq, settings: IngressSettings) -> Result<Self> {
        let server = Server::new(&settings.url)?;
        let taking = format!("{}.taking", settings.from);
        if settings.unmapped() == taking {
            return Err(invalid_setting(
                format!("`unmapped` is {taking:?}, the list of elements that are being taken"),
                "choose another name",
            ));
        }
        Ok(Self {
            target: Target::new(dq, "redis-list", &server.address(), &settings)?,
            server,
            taking,
            unmapped: settings.unmapped(),
            from: settings.from,
        })
    }

    /// Stores the jobs of elements in the second list and removes the elements. An element is an id
    /// followed by a body.
    async fn take(
        &self,
        connection: &mut MultiplexedConnection,
        elements: Vec<Vec<u8>>,
    ) -> Result<(), BoxError> {
        let messages: Vec<Message> = elements.iter().map(|element| message(element)).collect();
        let (taken, failure) = self.target.take(&messages).await;
        for (index, taken) in taken {
            let (element, body) = (&elements[index], &messages[index].body);
            let ended = match taken {
                Taken::Stored => command("LREM", &[self.taking.as_bytes(), b"1", element]),
                Taken::Unmapped(_) => {
                    let keys = [self.taking.as_bytes(), self.unmapped.as_bytes()];
                    script(SET_ASIDE, &keys, &[element, body])
                }
            };
            let _: Value = ended.query_async(connection).await?;
            step("acknowledged");
        }
        failure
    }

    /// Moves elements to the second list, with new ids, and returns them as they are there.
    async fn move_to_taking(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<Vec<Vec<u8>>> {
        let ids: Vec<[u8; 16]> = (0..BATCH).map(|_| self.target.new_id().to_bytes()).collect();
        let ids: Vec<&[u8]> = ids.iter().map(<[u8; 16]>::as_slice).collect();
        let keys = [self.from.as_bytes(), self.taking.as_bytes()];
        script(TAKE, &keys, &ids).query_async(connection).await
    }

    /// Waits a while for an element. Moves it from the list's end to the same end, so that it stays
    /// in place.
    async fn wait(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let (from, seconds) = (self.from.as_bytes(), WAIT.as_secs().to_string());
        let wait = command("BLMOVE", &[from, from, b"RIGHT", b"RIGHT", seconds.as_bytes()]);
        wait.query_async::<Value>(connection).await.map(drop)
    }

    /// Takes over elements that another process or a failed run left in the second list.
    ///
    /// Another process may still be taking them; that is safe because both use the same job ids.
    /// The initial length limits the loop, because live processes keep adding elements.
    async fn recover(
        &self,
        connection: &mut MultiplexedConnection,
        stop: &CancellationToken,
    ) -> Result<(), BoxError> {
        let length = command("LLEN", &[self.taking.as_bytes()]);
        let mut rest: usize = length.query_async(connection).await?;
        while rest > 0 && !stop.is_cancelled() {
            let count = rest.min(BATCH).to_string();
            let left = script(LEFT, &[self.taking.as_bytes()], &[count.as_bytes()]);
            let left: Vec<Vec<u8>> = left.query_async(connection).await?;
            if left.is_empty() {
                break;
            }
            rest -= left.len();
            self.take(connection, left).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl IngressSource for ListSource {
    fn queue(&self) -> &QueueName {
        self.target.queue()
    }

    fn name(&self) -> String {
        self.target.name().to_owned()
    }

    async fn run(&self, stop: &CancellationToken) -> Result<(), BoxError> {
        let mut connection = self.server.connect().await?;
        let mut next_recovery = Instant::now();
        while !stop.is_cancelled() {
            if Instant::now() >= next_recovery {
                self.recover(&mut connection, stop).await?;
                next_recovery = Instant::now() + RECOVERY_INTERVAL;
            }
            let moved = self.move_to_taking(&mut connection).await?;
            if !moved.is_empty() {
                self.take(&mut connection, moved).await?;
                continue;
            }
            tokio::select! {
                () = stop.cancelled() => {}
                waited = self.wait(&mut connection) => waited?,
            }
        }
        Ok(())
    }
}

fn command(name: &str, arguments: &[&[u8]]) -> Cmd {
    let mut command = cmd(name);
    command.arg(arguments);
    command
}

fn script(text: &str, keys: &[&[u8]], arguments: &[&[u8]]) -> Cmd {
    let mut command = cmd("EVAL");
    command.arg(text).arg(keys.len()).arg(keys).arg(arguments);
    command
}

/// Splits an element of the second list into its job id and its body.
fn message(element: &[u8]) -> Message {
    let (id, body) = match element.split_first_chunk::<16>() {
        Some((id, body)) => (Some(JobId::from_bytes(*id)), body),
        // Another program wrote to the second list.
        None => (None, element),
    };
    Message { job_id: id, body: Bytes::copy_from_slice(body), ..Message::default() }
}

dq_core::register_ingress! {
    name: "redis-list",
    open: |dq, settings| Ok(Arc::new(ListSource::new(dq, settings.deserialize()?)?)),
}
