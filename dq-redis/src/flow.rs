//! Limits of queues: how many of its jobs run at once, and how fast they start. The scripts keep
//! them (`scripts/library/gate.lua`).
//!
//! A limit is text, `max_running;interval;burst;rate`, each part empty if it is missing; and
//! `;group_max_running` if there is one. The interval, in microseconds, and the burst are for the
//! scripts; the rate is written as in settings.

use dq_core::machine::Gate;
use dq_core::sync::lock;
use dq_core::{Due, Error, ErrorKind, Flow, QueueFlow, QueueName, RateState, Result, Timestamp};

use redis::Value;

use crate::args::due_arg;
use crate::declarations::Declaration;
use crate::keys::Partition;
use crate::reply::Reply;
use crate::resize::retry_if_closed;
use crate::script::Call;
use crate::store::RedisBackend;

impl RedisBackend {
    /// Returns 1 if that changed anything, else 0.
    pub(crate) async fn declare_flow(&self, queue: &QueueName, limits: Flow) -> Result<u64> {
        let connection = Some(self.link.connections());
        let stored = self.set_flow(queue, "declared", Some(limits), None).await?;
        let declarations = &mut lock(&self.declarations).0;
        match stored.at {
            // A queue that never had limits needs no memory of that.
            Some(at) => declarations.insert(queue.clone(), Declaration { limits, at, connection }),
            None => declarations.remove(queue),
        };
        Ok(stored.changed)
    }

    /// Returns 1 if that changed anything, else 0.
    pub(crate) async fn override_flow(&self, queue: &QueueName, flow: Option<Flow>) -> Result<u64> {
        Ok(self.set_flow(queue, "overriding", flow, None).await?.changed)
    }

    /// Declares limits again that the server may have lost, after `FLUSHALL` or a failover. Keeps
    /// later declarations of other processes.
    ///
    /// # Errors
    /// One that names the queues that failed. The next call repeats only these.
    pub(crate) async fn restore_limits(&self, are_lost: bool) -> Result<()> {
        let connection = self.link.connections();
        let missing = {
            let mut declarations = lock(&self.declarations);
            for declaration in declarations.0.values_mut().filter(|_| are_lost) {
                declaration.connection = None;
            }
            declarations.missing(connection)
        };
        let mut failed = Vec::new();
        for (queue, Declaration { limits, at, .. }) in missing {
            match self.set_flow(&queue, "declared", Some(limits), Some(at)).await {
                Ok(Stored { changed, .. }) => {
                    if changed > 0 {
                        tracing::warn!(%queue, %limits, "Redis: the server had lost the limits of the queue");
                    }
                    let mut declarations = lock(&self.declarations);
                    let present = declarations.0.get_mut(&queue).filter(|present| present.at == at);
                    if let Some(present) = present {
                        present.connection = Some(connection);
                    }
                }
                Err(error) => failed.push((queue, error)),
            }
        }
        unrestored(&failed)
    }

    /// `field` is `declared` or `overriding`; `declared_at` is for limits that the server may have
    /// lost.
    async fn set_flow(
        &self,
        queue: &QueueName,
        field: &str,
        flow: Option<Flow>,
        declared_at: Option<u64>,
    ) -> Result<Stored> {
        let is_limited = flow.is_some_and(|flow| flow.is_limited());
        let text = flow.map(encode).unwrap_or_default();
        let declared_at = declared_at.map(|at| at.to_string()).unwrap_or_default();
        let stored = retry_if_closed!(self, async {
            let partitions = self.partitions_of(queue).await?;
            let set = self.shard_settings.for_queue(queue).filter(|_| is_limited).unwrap_or(1);
            if self.link.server().is_cluster() && partitions.shards().max(set) > 1 {
                let none = Stored { changed: 0, at: None };
                return if is_limited { Err(unlimitable(queue)) } else { Ok(Some(none)) };
            }
            let first = partitions.shard(0);
            let mut call = self.scripts.limit.on(partitions.all.iter().map(|one| &**one));
            call.arg(&first.channel).arg(field).arg(&text).arg(&declared_at);
            let reply = self.run_on(first, call).await?;
            reply.map(Stored::read).transpose()
        })?;
        if stored.changed > 0 {
            self.register([queue]).await?;
        }
        Ok(stored)
    }

    /// Closes all shards of a queue in a cluster, after a settlement has closed one of them. On one
    /// server the shards share what closes them.
    pub(crate) async fn close_shards(&self, queue: &QueueName, due: Due) -> Result<()> {
        let shards = self.partitions_of(queue).await?.shards();
        for shard in (0..shards).filter(|_| shards > 1 && self.link.server().is_cluster()) {
            let add = |partition: &Partition, call: &mut Call<'_>| {
                call.arg(&partition.channel).arg("close").arg(due_arg(due));
            };
            self.run_on_shard(queue, shard, &self.scripts.pause, add).await?;
        }
        Ok(())
    }
}

/// The reply of `limit.lua`.
struct Stored {
    /// 1 if the call changed anything, else 0.
    changed: u64,
    /// The time of the call in microseconds; `None` if no declaration is stored.
    at: Option<u64>,
}

impl Stored {
    fn read(reply: Value) -> Result<Self> {
        let mut reply = Reply::new(reply)?;
        let (changed, at) = (reply.count()?, reply.count()?);
        let has_declaration = reply.count()? == 1;
        Ok(Self { changed, at: has_declaration.then_some(at) })
    }
}

/// Has the message and the remedy of the first error.
fn unrestored(failed: &[(QueueName, Error)]) -> Result<()> {
    let Some((_, first)) = failed.first() else { return Ok(()) };
    let queues: Vec<_> = failed.iter().map(|(queue, _)| queue.as_str()).collect();
    let what = format!(
        "the limits of {}, which the server may have lost, could not be declared again: {}",
        queues.join(", "),
        first.message()
    );
    let error = Error::new(first.kind(), what);
    Err(match first.remedy_text() {
        Some(remedy) => error.remedy(remedy.to_owned()),
        None => error,
    })
}

fn unlimitable(queue: &QueueName) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "queue {queue} has several shards in a cluster, which cannot count their running jobs \
             together, so it cannot have `max_running`, `group_max_running` or `rate`"
        ),
    )
    .remedy("set its `shards` to 1, or remove `max_running`, `group_max_running` and `rate`")
}

fn encode(flow: Flow) -> String {
    let max = flow.max_running.map(|max| max.to_string()).unwrap_or_default();
    let mut text = match flow.rate {
        Some(rate) => {
            format!("{max};{};{};{rate}", rate.interval().as_micros(), rate.max_burst())
        }
        None => format!("{max};;;"),
    };
    if let Some(max) = flow.group_max_running {
        text.push_str(&format!(";{max}"));
    }
    text
}

fn decode(text: &str) -> Option<Flow> {
    let parts: Vec<&str> = text.split(';').collect();
    let [max, _interval, _burst, rate, group_max @ ..] = &parts[..] else { return None };
    let mut flow = Flow::UNLIMITED;
    flow.group_max_running = match group_max {
        [] => None,
        [max] => Some(max.parse().ok()?),
        _ => return None,
    };
    if !max.is_empty() {
        flow.max_running = Some(max.parse().ok()?);
    }
    if !rate.is_empty() {
        flow.rate = Some(rate.parse().ok()?);
    }
    Some(flow)
}

/// Limits that another program has written wrongly stop their queue.
fn read(text: &[u8]) -> Flow {
    let text = String::from_utf8_lossy(text);
    decode(&text).unwrap_or_else(|| {
        tracing::warn!(%text, "Redis: the limits of a queue cannot be read, so it stands still");
        Flow::UNLIMITED.max_running(0)
    })
}

/// Adds the gate of a partition to its queue's stats.
pub(crate) fn add_gate(flow: &mut QueueFlow, mut reply: Reply) -> Result<()> {
    let now = reply.time()?;
    let (declared, overriding) = (reply.bytes_or_nil()?, reply.bytes_or_nil()?);
    let gate = Gate {
        declared: declared.as_deref().map(read).unwrap_or_default(),
        overriding: overriding.as_deref().map(read),
        rate: RateState(reply.time_or_nil()?.map_or(0, Timestamp::as_millis)),
        closed_until: reply.time_or_nil()?,
    };
    let mut state = gate.state(now);
    state.opens_at = state.opens_at.max(flow.opens_at);
    *flow = state;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_they_are_written() {
        let rate = "10/1s burst 20".parse().unwrap();
        for (flow, text) in [
            (Flow::UNLIMITED, ";;;"),
            (Flow::UNLIMITED.max_running(3), "3;;;"),
            (Flow::UNLIMITED.rate(rate), ";100000;20;10/1s burst 20"),
            (Flow::UNLIMITED.max_running(3).rate(rate), "3;100000;20;10/1s burst 20"),
            (Flow::UNLIMITED.group_max_running(2), ";;;;2"),
            (Flow::UNLIMITED.group_max_running(2).rate(rate), ";100000;20;10/1s burst 20;2"),
        ] {
            assert_eq!(encode(flow), text);
            assert_eq!(decode(text), Some(flow));
        }
        dq_testkit::fuzz::check_text("limits", &["3;100000;20;10/1s burst 20;2"], |text| {
            decode(text).is_some()
        });
    }
}
