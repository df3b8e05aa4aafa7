//! The key layout of a backend: key names, the form of waiting jobs, and the rights to prove.

use std::fmt::Debug;

use bytes::Bytes;
use dq_core::{Error, NewJob, QueueName};
use redis::Value;

use crate::keys::{KINDS, Partition};
use crate::record;

/// A record of more bytes marks the partition: later claims there add up the sizes of records
/// before they read them, which takes more commands. A [`CHUNK`](crate::batch::CHUNK) of smaller
/// records stays below the maximum bytes of a claim in any case. Also in `scripts/library/jobs.lua`.
const LARGE_RECORD: usize = 8192;

/// How a backend names its keys and stores waiting jobs. The scripts of the layout must agree.
pub(crate) trait KeyLayout: Debug + Send + Sync {
    /// The set of all queues ever used.
    fn queues(&self) -> String;

    /// The index of queues, by which a claim knows which of many queues to look at. `None` if other
    /// programs add jobs, which the index would miss. See `scripts/library/keys.lua`.
    fn queue_index(&self) -> Option<String> {
        None
    }

    /// The queue of an entry of the index of queues.
    fn indexed_queue<'a>(&self, _entry: &'a [u8]) -> Option<&'a str> {
        None
    }

    /// The format of all data: see `format.rs`.
    fn format(&self) -> String;

    /// The announced runners, two keys in one slot.
    fn runners(&self) -> [String; 2];

    /// Partition number `shard` of a queue with this number of shards.
    fn partition(&self, queue: &QueueName, shards: u16, shard: u16) -> Partition;

    /// Whether `key` of the partition has its name from another program, so that `prefix` does not
    /// change it.
    fn is_shared(&self, _partition: &Partition, _key: &str) -> bool {
        false
    }

    /// The jobs as the layout's `schedule` script takes them. `now` is the estimate of the server's
    /// time.
    fn encode(&self, jobs: &[&NewJob], now: i64) -> EncodedJobs;

    /// The error for a status reply that only the layout's own scripts give.
    fn refusal(&self, _answer: &Value) -> Option<Error> {
        None
    }

    /// The commands and keys on which connecting proves the user's rights.
    fn rights(&self) -> RightsTest;
}

/// Jobs as arguments of a `schedule` script, besides handles, due times and keys.
#[derive(Debug, Default)]
pub(crate) struct EncodedJobs {
    /// Property by property, since that is how the script passes them to Redis; each column has one
    /// entry a job.
    pub(crate) columns: Vec<Vec<Bytes>>,
    /// Whether a record is large enough to mark the partition.
    pub(crate) has_large_record: bool,
    /// Whether two jobs that differ in handle and key are still the same to the layout.
    pub(crate) has_duplicates: bool,
}

/// Commands to try, and the keys to try them on.
#[derive(Debug)]
pub(crate) struct RightsTest {
    /// Lua texts that list commands, see `scripts/rights/try.lua`.
    pub(crate) commands: Vec<&'static str>,
    pub(crate) keys: Vec<String>,
    /// The channel of a queue that does not exist.
    pub(crate) channel: String,
}

/// `{prefix}:kind:queue`, with literal braces: the prefix is the hash tag, so all keys of a prefix
/// have one slot, and one call serves all queues. Queues with shards have `{prefix#shards.shard}`
/// in place of `{prefix}`.
#[derive(Debug)]
pub(crate) struct NativeLayout {
    /// The first part of every name.
    pub(crate) prefix: String,
}

impl KeyLayout for NativeLayout {
    fn queues(&self) -> String {
        format!("{{{}}}:queues", self.prefix)
    }

    fn queue_index(&self) -> Option<String> {
        Some(format!("{{{}}}:due-queues", self.prefix))
    }

    fn indexed_queue<'a>(&self, entry: &'a [u8]) -> Option<&'a str> {
        let name = str::from_utf8(entry).ok()?.strip_prefix('{')?;
        name.strip_prefix(self.prefix.as_str())?.strip_prefix("}:due:")
    }

    fn format(&self) -> String {
        format!("{{{}}}:format", self.prefix)
    }

    fn runners(&self) -> [String; 2] {
        ["runners", "runner-ends"].map(|kind| format!("{{{}}}:{kind}", self.prefix))
    }

    fn partition(&self, queue: &QueueName, shards: u16, shard: u16) -> Partition {
        let prefix = &self.prefix;
        let tag = match shards {
            1 => prefix.clone(),
            shards => format!("{prefix}#{shards}.{shard}"),
        };
        let keys = KINDS.iter().map(|kind| format!("{{{tag}}}:{kind}:{queue}")).collect();
        let partition = Partition::new(queue, keys, format!("{{{prefix}}}:wake:{queue}"));
        let queue_index = self.queue_index().filter(|_| shards == 1);
        Partition { shards, shard, queue_index, ..partition }
    }

    fn encode(&self, jobs: &[&NewJob], now: i64) -> EncodedJobs {
        let records: Vec<Bytes> = jobs.iter().map(|job| record::encode(job, now).into()).collect();
        let has_large_record = records.iter().any(|record| record.len() > LARGE_RECORD);
        EncodedJobs { columns: vec![records], has_large_record, has_duplicates: false }
    }

    fn rights(&self) -> RightsTest {
        let prefix = &self.prefix;
        RightsTest {
            commands: vec![include_str!("scripts/rights/native.lua")],
            keys: ["zset", "hash"].map(|kind| format!("{{{prefix}}}:rights:{kind}")).into(),
            channel: format!("{{{prefix}}}:wake:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::slot;

    #[test]
    fn all_keys_of_a_prefix_have_one_slot_whatever_the_queue() {
        let layout = NativeLayout { prefix: "dq".to_owned() };
        for queue in ["q", "a{x}b", "}{", "订单"] {
            let partition = layout.partition(&QueueName::new(queue).unwrap(), 1, 0);
            assert!(partition.is_in_one_slot(), "{partition:?}");
            assert_eq!(partition.slot, slot(b"dq"));
            let shard = layout.partition(&partition.queue, 4, 3);
            assert!(shard.is_in_one_slot(), "{shard:?}");
            assert_eq!((shard.slot, shard.channel), (slot(b"dq#4.3"), partition.channel));
        }
        assert_eq!(slot(layout.queues().as_bytes()), slot(b"dq"));
    }

    #[test]
    fn partitions_of_different_numbers_of_shards_share_no_keys() {
        let layout = NativeLayout { prefix: "dq".to_owned() };
        let queue = QueueName::new("q").unwrap();
        // Pairs of a number of shards and a shard; the last two could be mixed up without the dot.
        let all = [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (22, 0), (2, 20)];
        let keys = all.map(|(shards, shard)| layout.partition(&queue, shards, shard).keys);
        let distinct: std::collections::HashSet<_> = keys.iter().flatten().collect();
        assert_eq!(distinct.len(), all.len() * KINDS.len());
    }
}
