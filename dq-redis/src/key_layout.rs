use std::fmt::Debug;

use bytes::Bytes;
use dq_core::{Error, NewJob, QueueName};
use redis::Value;

use crate::keys::{FLOW_KINDS, KINDS, PARKED, Partition};
use crate::record;

/// A larger record (in bytes) marks the partition: later claims there add up record sizes, with
/// more commands. A [`CHUNK`](crate::batch::CHUNK) of smaller records stays below a claim's byte
/// limit. Also in `scripts/library/jobs.lua`.
const LARGE_RECORD: usize = 8192;

/// How a backend names its keys and stores waiting jobs. The layout's scripts must agree.
pub(crate) trait KeyLayout: Debug + Send + Sync {
    fn queues(&self) -> String;

    /// By the queue index a claim knows where to look among many queues. `None` if other programs
    /// add jobs, because the index would miss them. See `scripts/library/keys.lua`.
    fn queue_index(&self) -> Option<String> {
        None
    }

    fn indexed_queue<'a>(&self, _entry: &'a [u8]) -> Option<&'a str> {
        None
    }

    fn format(&self) -> String;

    /// In the order for `scripts/runners.lua`.
    fn runners(&self) -> [String; 2];

    /// A channel for trying the right to use it.
    fn test_channel(&self) -> String;

    fn partition(&self, queue: &QueueName, shards: u16, shard: u16) -> Partition;

    /// The layout's `schedule` script corrects the time `accepted` if necessary.
    fn encode(&self, jobs: &[&NewJob], accepted: i64) -> EncodedJobs;

    /// The error for a status reply that only the layout's own scripts give.
    fn refusal(&self, _answer: &Value) -> Option<Error> {
        None
    }

    fn rights(&self) -> RightsTest;
}

/// Arguments for a `schedule` script, besides handles, due times and keys.
#[derive(Debug, Default)]
pub(crate) struct EncodedJobs {
    /// Each column has one property of all jobs.
    pub(crate) columns: Vec<Vec<Bytes>>,
    pub(crate) has_large_record: bool,
    /// Whether the layout takes two jobs with different handles and keys for the same.
    pub(crate) has_duplicates: bool,
}

/// The commands and keys that `rights.rs` tries.
#[derive(Debug)]
pub(crate) struct RightsTest {
    /// Lua texts, see `scripts/rights/try.lua`.
    pub(crate) commands: Vec<&'static str>,
    pub(crate) keys: Vec<String>,
}

/// `{prefix}:kind:queue`, with literal braces: the prefix is the hash tag, so all keys of a prefix
/// have one slot, and one call serves all queues. Sharded queues have `{prefix#shards.shard}`
/// instead.
#[derive(Debug)]
pub(crate) struct NativeLayout {
    pub(crate) prefix: String,
    pub(crate) is_cluster: bool,
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
        // On one server a queue's shards share its limits.
        let flow_tag = if self.is_cluster { &tag } else { prefix };
        let keys = KINDS.iter().map(|kind| format!("{{{tag}}}:{kind}:{queue}"));
        let flow_keys = FLOW_KINDS.iter().map(|kind| format!("{{{flow_tag}}}:{kind}:{queue}"));
        let parked = format!("{{{tag}}}:{PARKED}:{queue}");
        let keys = keys.chain(flow_keys).chain([parked]).collect();
        let partition = Partition::new(queue, keys, format!("{{{prefix}}}:wake:{queue}"));
        let queue_index = self.queue_index().filter(|_| shards == 1);
        Partition { shards, shard, queue_index, ..partition }
    }

    fn encode(&self, jobs: &[&NewJob], accepted: i64) -> EncodedJobs {
        let encode = |job: &&NewJob| Bytes::from(record::encode(job, accepted));
        let records: Vec<Bytes> = jobs.iter().map(encode).collect();
        let has_large_record = records.iter().any(|record| record.len() > LARGE_RECORD);
        EncodedJobs { columns: vec![records], has_large_record, has_duplicates: false }
    }

    fn rights(&self) -> RightsTest {
        let prefix = &self.prefix;
        RightsTest {
            commands: vec![
                include_str!("scripts/rights/native.lua"),
                include_str!("scripts/rights/limits.lua"),
            ],
            keys: ["zset", "hash"].map(|kind| format!("{{{prefix}}}:rights:{kind}")).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_in_one_slot_and_share_no_keys_with_other_shard_counts() {
        let layout = |is_cluster| NativeLayout { prefix: "dq".to_owned(), is_cluster };
        let queue = QueueName::new("a{x}b}{").unwrap();
        // (shard count, shard); without the dot, the last two could be mixed up.
        let all = [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (22, 0), (2, 20)];
        let distinct_keys = |is_cluster| {
            let partition = |(shards, shard)| layout(is_cluster).partition(&queue, shards, shard);
            let partitions = all.map(partition);
            assert!(!is_cluster || partitions.iter().all(Partition::is_in_one_slot));
            let keys = partitions.into_iter().flat_map(|partition| partition.keys);
            keys.collect::<std::collections::HashSet<_>>().len()
        };
        assert_eq!(distinct_keys(true), all.len() * (KINDS.len() + FLOW_KINDS.len() + 1));
        assert_eq!(distinct_keys(false), all.len() * (KINDS.len() + 1) + FLOW_KINDS.len());
    }
}
