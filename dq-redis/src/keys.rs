//! The names of all keys, and where in a cluster they live.

use dq_core::QueueName;

/// What is kept of a queue, in the order in which the scripts get it.
const KINDS: [&str; 9] = ["due", "job", "state", "lease", "key", "dead", "reason", "meta", "stray"];

/// How keys are named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Naming {
    /// `{prefix}:kind:queue`: all keys of a prefix in one slot, so that one call serves all queues.
    /// Shards other than the first have `{prefix#number}`, which is the same for all queues too.
    Native {
        /// Names what belongs together.
        prefix: String,
    },
    /// Redisson's names, and ours in the same slot.
    Redisson {
        /// Names what is ours.
        prefix: String,
        /// What Java's `NameMapper` puts before the names of queues.
        name_prefix: String,
    },
}

/// The keys of one queue, or of one shard of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) queue: QueueName,
    /// In the order that the scripts expect.
    pub(crate) keys: Vec<String>,
    /// Where changes of the head are published.
    pub(crate) channel: String,
    /// The slot of all the keys in a cluster.
    pub(crate) slot: u16,
    /// Which shard, from 0.
    pub(crate) shard: u16,
    /// What scripts are told that the layout is; empty for a queue that never had shards.
    pub(crate) belief: String,
}

impl Naming {
    /// The set of all queues ever used.
    pub(crate) fn queues(&self) -> String {
        match self {
            Self::Native { prefix } => format!("{{{prefix}}}:queues"),
            Self::Redisson { prefix, .. } => format!("{prefix}:queues"),
        }
    }

    /// The keys of a shard under this layout.
    pub(crate) fn lane(&self, queue: &QueueName, shard: u16, belief: String) -> Lane {
        let (keys, channel) = match self {
            Self::Native { prefix } => {
                let tag = match shard {
                    0 => prefix.clone(),
                    shard => format!("{prefix}#{shard}"),
                };
                let name = |kind: &&str| format!("{{{tag}}}:{kind}:{queue}");
                // Who listens hears all shards.
                (KINDS.iter().map(name).collect(), format!("{{{prefix}}}:wake:{queue}"))
            }
            Self::Redisson { prefix, name_prefix } => {
                let name = format!("{name_prefix}{queue}");
                let ours = KINDS.iter().map(|kind| tagged(&format!("{prefix}:{kind}"), &name));
                let java = [
                    tagged("redisson_delay_queue_timeout", &name),
                    tagged("redisson_delay_queue", &name),
                    name.clone(),
                ];
                let outside = tagged(&format!("{prefix}:outside"), &name);
                let keys: Vec<String> = ours.chain(java).chain([outside]).collect();
                (keys, tagged("redisson_delay_queue_channel", &name))
            }
        };
        let keys: Vec<String> = keys;
        let slot = slot(keys[0].as_bytes());
        Lane { queue: queue.clone(), keys, channel, slot, shard, belief }
    }
}

/// A key that belongs to an object of Redisson: the object's name becomes the hash tag, unless it
/// holds a `{` already. (`RedissonObject.prefixName`, unchanged from 3.16 to 4.7.)
fn tagged(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

impl Lane {
    /// Whether all keys live in one slot. Not so for names with braces that are no hash tag.
    pub(crate) fn is_whole(&self) -> bool {
        self.keys.iter().all(|key| slot(key.as_bytes()) == self.slot)
    }

    /// Whether a key has a name that Java gives; of the Redisson naming only.
    pub(crate) fn is_javas(&self, key: &str) -> bool {
        self.keys.iter().skip(KINDS.len()).take(3).any(|name| name == key)
    }

    /// The list that keeps Java's order of insertion; of the Redisson naming only.
    pub(crate) fn order(&self) -> &str {
        &self.keys[KINDS.len() + 1]
    }

    /// The list that Java's clients take from; of the Redisson naming only.
    pub(crate) fn target(&self) -> &str {
        &self.keys[KINDS.len() + 2]
    }
}

/// The slot of a key in a cluster: by its hash tag, the part between the first `{` and the next `}`,
/// if there is one and it is not empty. (Redis Cluster specification, "Hash tags".)
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

    fn only(naming: &Naming, queue: &QueueName) -> Lane {
        naming.lane(queue, 0, String::new())
    }

    #[test]
    fn slots_are_those_of_a_cluster() {
        // CLUSTER KEYSLOT of Redis 7.0.15; the first is in the specification of CRC16.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"123456789"), 12739);
        assert_eq!(slot(b"my{}q"), 12782);
        assert_eq!(slot(b"q{x"), 1028);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
    }

    #[test]
    fn all_keys_of_a_prefix_live_together_whatever_the_queue() {
        let naming = Naming::Native { prefix: "dq".to_owned() };
        let home = slot(b"dq");
        for queue in ["q", "a{x}b", "}{", "订单"] {
            let queue = QueueName::new(queue).unwrap();
            let lane = only(&naming, &queue);
            assert!(lane.keys.iter().all(|key| slot(key.as_bytes()) == home), "{lane:?}");
            assert_eq!(lane.slot, home);
            let shard = naming.lane(&queue, 3, String::new());
            let home = slot(b"dq#3");
            assert!(shard.keys.iter().all(|key| slot(key.as_bytes()) == home), "{shard:?}");
            assert_eq!((shard.slot, shard.channel), (home, lane.channel));
        }
        assert_eq!(slot(naming.queues().as_bytes()), home);
    }

    #[test]
    fn keys_of_a_redisson_queue_live_with_it_if_they_can() {
        let naming = Naming::Redisson { prefix: "dq".to_owned(), name_prefix: "app:".to_owned() };
        let lane = only(&naming, &QueueName::new("orders").unwrap());
        assert_eq!(lane.target(), "app:orders");
        assert_eq!(lane.keys[0], "dq:due:{app:orders}");
        assert_eq!(lane.keys[9], "redisson_delay_queue_timeout:{app:orders}");
        assert_eq!(lane.keys[10], "redisson_delay_queue:{app:orders}");
        assert_eq!(lane.channel, "redisson_delay_queue_channel:{app:orders}");
        assert!(lane.is_whole());
        let naming = Naming::Redisson { prefix: "dq".to_owned(), name_prefix: String::new() };
        for (name, whole) in [("a{x}b{y}", true), ("my{}q", false), ("q{x", false)] {
            let lane = only(&naming, &QueueName::new(name).unwrap());
            assert_eq!(lane.is_whole(), whole, "{lane:?}");
            assert_eq!(lane.keys[9], format!("redisson_delay_queue_timeout:{name}"));
        }
    }
}
