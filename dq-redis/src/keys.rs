//! Names of Redis keys and channels, and their slots in a cluster.

use dq_core::QueueName;

/// A partition's keys, in the order for scripts: see `scripts/library/keys.lua`. `stray` is the
/// quarantine.
pub(crate) const KINDS: [&str; 13] = [
    "due", "job", "state", "lease", "key", "dead", "reason", "meta", "stray", "ended", "past",
    "unpin", "pin",
];
/// The keys of a queue's limits, which follow in the native layout; and then that of a partition's
/// parked jobs.
pub(crate) const FLOW_KINDS: [&str; 3] = ["flow", "line", "groups"];
pub(crate) const PARKED: &str = "parked";
const JOB: usize = 1;
const QUARANTINE: usize = 8;

/// A queue without shards, or one shard of a queue: keys in one slot of a cluster.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    pub(crate) queue: QueueName,
    pub(crate) keys: Vec<String>,
    /// Scripts publish a due time here when its job becomes the first due in the partition. All
    /// partitions of a queue share one channel.
    pub(crate) channel: String,
    pub(crate) slot: u16,
    /// The queue's shard count: 1 for the unsharded partition.
    pub(crate) shards: u16,
    pub(crate) shard: u16,
    /// The queue index, if it contains the partition.
    pub(crate) queue_index: Option<String>,
}

impl Partition {
    pub(crate) fn new(queue: &QueueName, keys: Vec<String>, channel: String) -> Self {
        let slot = slot(keys[0].as_bytes());
        Self { queue: queue.clone(), keys, channel, slot, shards: 1, shard: 0, queue_index: None }
    }

    pub(crate) fn job_key(&self) -> &str {
        &self.keys[JOB]
    }

    pub(crate) fn quarantine_key(&self) -> &str {
        &self.keys[QUARANTINE]
    }

    pub(crate) fn is_in_one_slot(&self) -> bool {
        self.keys.iter().all(|key| slot(key.as_bytes()) == self.slot)
    }
}

/// The key's slot in a cluster. Only the hash tag counts, the part between the first `{` and the
/// next `}`, or the whole key if the tag is missing or empty. (Redis Cluster specification, "Hash
/// tags".)
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = || {
        let open = key.iter().position(|byte| *byte == b'{')?;
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    };
    crc16(tag().unwrap_or(key)) % 16_384
}

/// CRC-16/XMODEM, as Redis Cluster uses it.
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc: u16, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}
