//! Redisson's key layout.

use std::collections::HashSet;

use bytes::Bytes;
use dq_core::{Error, NewJob, QueueName};
use redis::Value;

use super::member::{self, Format};
use crate::key_layout::{EncodedJobs, KeyLayout, RightsTest};
use crate::keys::{KINDS, Partition};
use crate::record;

/// Redisson's keys under Redisson's names, and `prefix:kind:{queue}` in the same slot: the queue
/// name is the hash tag.
#[derive(Debug)]
pub(super) struct RedissonLayout {
    pub(super) prefix: String,
    pub(super) name_prefix: String,
    pub(super) format: Format,
}

impl KeyLayout for RedissonLayout {
    fn queues(&self) -> String {
        format!("{}:queues", self.prefix)
    }

    fn format(&self) -> String {
        format!("{}:format", self.prefix)
    }

    fn runners(&self) -> [String; 2] {
        let prefix = &self.prefix;
        ["runners", "runner-ends"].map(|kind| format!("{prefix}:{kind}:{{{prefix}}}"))
    }

    fn test_channel(&self) -> String {
        "redisson_delay_queue_channel:{dq-rights}".to_owned()
    }

    fn partition(&self, queue: &QueueName, _shards: u16, _shard: u16) -> Partition {
        let Self { prefix, name_prefix, .. } = self;
        let name = format!("{name_prefix}{queue}");
        let native = KINDS.iter().map(|kind| tagged(&format!("{prefix}:{kind}"), &name));
        let java = [
            tagged("redisson_delay_queue_timeout", &name),
            tagged("redisson_delay_queue", &name),
            name.clone(),
        ];
        // java.lua calls this hash `index`; in Redis its name is `outside`.
        let index = tagged(&format!("{prefix}:outside"), &name);
        let keys = native.chain(java).chain([index]).collect();
        Partition::new(queue, keys, tagged("redisson_delay_queue_channel", &name))
    }

    fn is_shared(&self, partition: &Partition, key: &str) -> bool {
        partition.keys.iter().skip(KINDS.len()).take(3).any(|name| name == key)
    }

    /// Member ids, record prefixes, payloads.
    fn encode(&self, jobs: &[&NewJob], now: i64) -> EncodedJobs {
        let id = |job: &&NewJob| Bytes::from(member::member_id(self.format, job.id));
        let ids: Vec<Bytes> = jobs.iter().map(id).collect();
        let prefix = |job: &&NewJob| {
            let mut prefix = Vec::new();
            record::encode_prefix(job, now, &mut prefix);
            prefix.into()
        };
        let payload = |job: &&NewJob| job.payload.clone();
        EncodedJobs {
            has_duplicates: ids.iter().collect::<HashSet<_>>().len() < ids.len(),
            has_large_record: false,
            columns: vec![
                ids,
                jobs.iter().map(prefix).collect(),
                jobs.iter().map(payload).collect(),
            ],
        }
    }

    fn refusal(&self, answer: &Value) -> Option<Error> {
        let is_other = matches!(answer, Value::SimpleString(status) if status == "OTHER_FORMAT");
        is_other.then(|| self.format.refusal())
    }

    fn rights(&self) -> RightsTest {
        let prefix = &self.prefix;
        let own = |kind| format!("{prefix}:rights:{kind}:{{dq-rights}}");
        let java = |kind| format!("redisson_delay_queue{kind}:{{dq-rights}}");
        RightsTest {
            commands: vec![
                include_str!("../scripts/rights/native.lua"),
                include_str!("../scripts/rights/redisson.lua"),
            ],
            keys: vec![own("zset"), own("hash"), own("list"), java("_timeout"), java("")],
        }
    }
}

/// The key of a Redisson object: its name is the hash tag, unless it contains a `{` itself.
/// (`RedissonObject.prefixName`, unchanged from 3.16 to 4.7.)
pub(crate) fn tagged(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

/// The list with Redisson's insertion order.
pub(super) fn order_key(partition: &Partition) -> &str {
    &partition.keys[KINDS.len() + 1]
}

pub(super) fn destination_key(partition: &Partition) -> &str {
    &partition.keys[KINDS.len() + 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(name_prefix: &str) -> RedissonLayout {
        let name_prefix = name_prefix.to_owned();
        RedissonLayout { prefix: "dq".to_owned(), name_prefix, format: Format::Current }
    }

    fn unsharded(layout: &RedissonLayout, queue: &str) -> Partition {
        layout.partition(&QueueName::new(queue).unwrap(), 1, 0)
    }

    #[test]
    fn keys_of_a_queue_have_its_slot_if_its_name_allows() {
        let partition = unsharded(&layout("app:"), "orders");
        assert_eq!(destination_key(&partition), "app:orders");
        assert_eq!(partition.keys[0], "dq:due:{app:orders}");
        assert_eq!(partition.keys[KINDS.len()], "redisson_delay_queue_timeout:{app:orders}");
        assert_eq!(order_key(&partition), "redisson_delay_queue:{app:orders}");
        assert_eq!(partition.channel, "redisson_delay_queue_channel:{app:orders}");
        assert!(partition.is_in_one_slot());
        for (name, in_one_slot) in [("a{x}b{y}", true), ("my{}q", false), ("q{x", false)] {
            let partition = unsharded(&layout(""), name);
            assert_eq!(partition.is_in_one_slot(), in_one_slot, "{partition:?}");
            assert_eq!(partition.keys[KINDS.len()], format!("redisson_delay_queue_timeout:{name}"));
        }
    }
}
