//! The key layout of a backend: key names, the form of waiting jobs, and the user's rights.

use std::fmt::Debug;

use bytes::Bytes;
use dq_core::{Error, NewJob, QueueName};
use redis::Value;

use crate::keys::{KINDS, Partition};
use crate::record;

/// A larger record (in bytes) marks the partition. Later claims there add up record sizes before
/// reading, with more commands. A [`CHUNK`](crate::batch::CHUNK) of smaller records always stays
/// below a claim's byte limit. Also in `scripts/library/jobs.lua`.
const LARGE_RECORD: usize = 8192;

/// How a backend names its keys and stores waiting jobs. The layout's scripts must agree.
pub(crate) trait KeyLayout: Debug + Send + Sync {
    fn queues(&self) -> String;

    /// The queue index, by which a claim knows where to look among many queues. `None` if other
    /// programs add jobs, because the index would miss them. See `scripts/library/keys.lua`.
    fn queue_index(&self) -> Option<String> {
        None
    }

    fn indexed_queue<'a>(&self, _entry: &'a [u8]) -> Option<&'a str> {
        None
    }

    /// The key with the format of all data: see `format.rs`.
    fn format(&self) -> String;

    fn runners(&self) -> [String; 2];

    /// The channel of a queue that does not exist, for trying the right to use it.
    fn test_channel(&self) -> String;

    /// Partition number `shard` of a queue with this shard count.
    fn partition(&self, queue: &QueueName, shards: u16, shard: u16) -> Partition;

    /// Whether another program named this key, so that `prefix` does not change it.
    fn is_shared(&self, _partition: &Partition, _key: &str) -> bool {
        false
    }

    fn encode(&self, jobs: &[&NewJob], now: i64) -> EncodedJobs;

    /// The error for a status reply that only the layout's own scripts give.
    fn refusal(&self, _answer: &Value) -> Option<Error> {
        None
    }

    fn rights(&self) -> RightsTest;
}

/// Arguments for a `schedule` script, besides handles, due times and keys.
#[derive(Debug, Default)]
pub(crate) struct EncodedJobs {
    /// Property by property, as the script passes them to Redis; one entry a job in each column.
    pub(crate) columns: Vec<Vec<Bytes>>,
    pub(crate) has_large_record: bool,
    /// Whether the layout takes two jobs with different handles and keys for the same.
    pub(crate) has_duplicates: bool,
}

#[derive(Debug)]
pub(crate) struct RightsTest {
    /// Lua texts that list commands, see `scripts/rights/try.lua`.
    pub(crate) commands: Vec<&'static str>,
    pub(crate) keys: Vec<String>,
}

/// `{prefix}:kind:queue`, with literal braces: the prefix is the hash tag, so all keys of a prefix
/// have one slot, and one call serves all queues. Sharded queues have `{prefix#shards.shard}`
/// instead.
#[derive(Debug)]
pub(crate) struct NativeLayout {
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

    fn test_channel(&self) -> String {
        format!("{{{}}}:wake:", self.prefix)
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
        // Shard counts and shards; without the dot, the last two could be mixed up.
        let all = [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (22, 0), (2, 20)];
        let keys = all.map(|(shards, shard)| layout.partition(&queue, shards, shard).keys);
        let distinct: std::collections::HashSet<_> = keys.iter().flatten().collect();
        assert_eq!(distinct.len(), all.len() * KINDS.len());
    }
}
