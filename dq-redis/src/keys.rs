//! Names of Redis keys and channels, and their slots in a cluster.

use dq_core::QueueName;

/// The keys of a partition, in the order in which scripts expect them. The beginning of
/// `scripts/library/keys.lua` says what each holds; `stray` is the quarantine.
const KINDS: [&str; 13] = [
    "due", "job", "state", "lease", "key", "dead", "reason", "meta", "stray", "ended", "past",
    "unpin", "pin",
];

/// The naming scheme of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Naming {
    /// `{prefix}:kind:queue`, with literal braces: the prefix is the hash tag, so all keys of a
    /// prefix have one slot, and one call serves all queues. Queues with shards have
    /// `{prefix#shards.shard}` in place of `{prefix}`.
    Native {
        /// The first part of every name.
        prefix: String,
    },
    /// Redisson's keys under Redisson's names, and `prefix:kind:{queue}` in the same slot: the name
    /// of the queue is the hash tag.
    Redisson {
        /// The first part of the names of keys that are not Redisson's.
        prefix: String,
        /// What Java's `NameMapper` puts before the names of queues.
        name_prefix: String,
    },
}

/// The keys of a queue, or of one shard of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    pub(crate) queue: QueueName,
    /// In the order that scripts expect.
    pub(crate) keys: Vec<String>,
    /// The channel on which the due time of a job is published when the job becomes the first due
    /// in its partition. All partitions of a queue share one channel.
    pub(crate) channel: String,
    /// The slot of all keys in a cluster.
    pub(crate) slot: u16,
    /// The number of shards that this partition is one of: 1 for the unsharded partition.
    pub(crate) shards: u16,
    /// The number of this shard, from 0.
    pub(crate) shard: u16,
    /// The key of the index of queues, if the partition is in it; see [`Naming::queue_index`].
    pub(crate) queue_index: Option<String>,
}

impl Naming {
    /// The key of the set of all queues ever used.
    pub(crate) fn queues(&self) -> String {
        match self {
            Self::Native { prefix } => format!("{{{prefix}}}:queues"),
            Self::Redisson { prefix, .. } => format!("{prefix}:queues"),
        }
    }

    /// The key of the index of queues, by which a claim knows which of many queues to look at;
    /// `None` for Redisson's, to which Java adds jobs. See `scripts/library/keys.lua`.
    pub(crate) fn queue_index(&self) -> Option<String> {
        match self {
            Self::Native { prefix } => Some(format!("{{{prefix}}}:due-queues")),
            Self::Redisson { .. } => None,
        }
    }

    /// The queue of an entry of the index of queues.
    pub(crate) fn indexed_queue<'a>(&self, entry: &'a [u8]) -> Option<&'a str> {
        let Self::Native { prefix } = self else { return None };
        let name = str::from_utf8(entry).ok()?.strip_prefix('{')?.strip_prefix(prefix.as_str())?;
        name.strip_prefix("}:due:")
    }

    /// The key of the format of all data: see `format.rs`.
    pub(crate) fn format(&self) -> String {
        match self {
            Self::Native { prefix } => format!("{{{prefix}}}:format"),
            Self::Redisson { prefix, .. } => format!("{prefix}:format"),
        }
    }

    /// The channel of a queue that does not exist.
    pub(crate) fn test_channel(&self) -> String {
        match self {
            Self::Native { prefix } => format!("{{{prefix}}}:wake:"),
            Self::Redisson { .. } => "redisson_delay_queue_channel:{dq-rights}".to_owned(),
        }
    }

    /// The keys of announced runners, in one slot.
    pub(crate) fn runners(&self) -> [String; 2] {
        let (Self::Native { prefix } | Self::Redisson { prefix, .. }) = self;
        match self {
            Self::Native { .. } => {
                ["runners", "runner-ends"].map(|kind| format!("{{{prefix}}}:{kind}"))
            }
            Self::Redisson { .. } => {
                ["runners", "runner-ends"].map(|kind| format!("{prefix}:{kind}:{{{prefix}}}"))
            }
        }
    }

    /// Partition number `shard` of a queue with this number of shards.
    pub(crate) fn partition(&self, queue: &QueueName, shards: u16, shard: u16) -> Partition {
        let (keys, channel): (Vec<String>, String) = match self {
            Self::Native { prefix } => {
                let tag = match shards {
                    1 => prefix.clone(),
                    shards => format!("{prefix}#{shards}.{shard}"),
                };
                let name = |kind: &&str| format!("{{{tag}}}:{kind}:{queue}");
                (KINDS.iter().map(name).collect(), format!("{{{prefix}}}:wake:{queue}"))
            }
            Self::Redisson { prefix, name_prefix } => {
                let name = format!("{name_prefix}{queue}");
                let native = KINDS.iter().map(|kind| tagged(&format!("{prefix}:{kind}"), &name));
                let java = [
                    tagged("redisson_delay_queue_timeout", &name),
                    tagged("redisson_delay_queue", &name),
                    name.clone(),
                ];
                // The hash that java.lua calls `index`; in Redis its name is `outside`.
                let index = tagged(&format!("{prefix}:outside"), &name);
                let keys = native.chain(java).chain([index]).collect();
                (keys, tagged("redisson_delay_queue_channel", &name))
            }
        };
        let slot = slot(keys[0].as_bytes());
        let queue_index = self.queue_index().filter(|_| shards == 1);
        Partition { queue: queue.clone(), keys, channel, slot, shards, shard, queue_index }
    }
}

/// The key of a Redisson object: the object's name is the hash tag, unless it contains a `{`
/// itself. (`RedissonObject.prefixName`, unchanged from 3.16 to 4.7.)
fn tagged(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

impl Partition {
    /// The hash of all records.
    pub(crate) fn job_key(&self) -> &str {
        &self.keys[1]
    }

    /// The sorted set of quarantined entries.
    pub(crate) fn quarantine_key(&self) -> &str {
        &self.keys[8]
    }

    /// Whether all keys have one slot. False for names of Redisson queues whose braces are no hash
    /// tag.
    pub(crate) fn is_in_one_slot(&self) -> bool {
        self.keys.iter().all(|key| slot(key.as_bytes()) == self.slot)
    }

    /// Whether Redisson itself uses this key; of the Redisson naming only.
    pub(crate) fn is_java_key(&self, key: &str) -> bool {
        self.keys.iter().skip(KINDS.len()).take(3).any(|name| name == key)
    }

    /// The list in which Redisson keeps the order of insertion; of the Redisson naming only.
    pub(crate) fn order(&self) -> &str {
        &self.keys[KINDS.len() + 1]
    }

    /// The list from which Java's clients take; of the Redisson naming only.
    pub(crate) fn destination(&self) -> &str {
        &self.keys[KINDS.len() + 2]
    }
}

/// The slot of a key in a cluster: that of its hash tag, the part between the first `{` and the
/// next `}`, if there is one that is not empty. (Redis Cluster specification, "Hash tags".)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn unsharded(naming: &Naming, queue: &str) -> Partition {
        naming.partition(&QueueName::new(queue).unwrap(), 1, 0)
    }

    #[test]
    fn slots_are_those_of_a_cluster() {
        // The results of CLUSTER KEYSLOT of Redis 7.0.15. 0x31c3 is in the specification of CRC-16.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"123456789"), 12739);
        assert_eq!(slot(b"my{}q"), 12782);
        assert_eq!(slot(b"q{x"), 1028);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
    }

    #[test]
    fn all_keys_of_a_prefix_have_one_slot_whatever_the_queue() {
        let naming = Naming::Native { prefix: "dq".to_owned() };
        for queue in ["q", "a{x}b", "}{", "订单"] {
            let partition = unsharded(&naming, queue);
            assert!(partition.is_in_one_slot(), "{partition:?}");
            assert_eq!(partition.slot, slot(b"dq"));
            let shard = naming.partition(&partition.queue, 4, 3);
            assert!(shard.is_in_one_slot(), "{shard:?}");
            assert_eq!((shard.slot, shard.channel), (slot(b"dq#4.3"), partition.channel));
        }
        assert_eq!(slot(naming.queues().as_bytes()), slot(b"dq"));
    }

    #[test]
    fn partitions_of_different_numbers_of_shards_share_no_keys() {
        let naming = Naming::Native { prefix: "dq".to_owned() };
        let queue = QueueName::new("q").unwrap();
        // Pairs of a number of shards and a shard; the last two could be mixed up without the dot.
        let all = [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (22, 0), (2, 20)];
        let keys = all.map(|(shards, shard)| naming.partition(&queue, shards, shard).keys);
        let distinct: std::collections::HashSet<_> = keys.iter().flatten().collect();
        assert_eq!(distinct.len(), all.len() * KINDS.len());
    }

    #[test]
    fn keys_of_a_redisson_queue_have_its_slot_if_its_name_allows() {
        let naming = Naming::Redisson { prefix: "dq".to_owned(), name_prefix: "app:".to_owned() };
        let partition = unsharded(&naming, "orders");
        assert_eq!(partition.destination(), "app:orders");
        assert_eq!(partition.keys[0], "dq:due:{app:orders}");
        assert_eq!(partition.keys[KINDS.len()], "redisson_delay_queue_timeout:{app:orders}");
        assert_eq!(partition.keys[KINDS.len() + 1], "redisson_delay_queue:{app:orders}");
        assert_eq!(partition.channel, "redisson_delay_queue_channel:{app:orders}");
        assert!(partition.is_in_one_slot());
        let naming = Naming::Redisson { prefix: "dq".to_owned(), name_prefix: String::new() };
        for (name, in_one_slot) in [("a{x}b{y}", true), ("my{}q", false), ("q{x", false)] {
            let partition = unsharded(&naming, name);
            assert_eq!(partition.is_in_one_slot(), in_one_slot, "{partition:?}");
            assert_eq!(partition.keys[KINDS.len()], format!("redisson_delay_queue_timeout:{name}"));
        }
    }
}
