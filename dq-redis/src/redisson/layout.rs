use std::collections::HashSet;

use bytes::Bytes;
use dq_core::{Error, NewJob, QueueName};
use redis::Value;

use super::member::{self, Format};
use crate::key_layout::{EncodedJobs, KeyLayout, RightsTest};
use crate::keys::{KINDS, Partition};
use crate::record;

/// Redisson's keys under Redisson's names, and `prefix:kind:{queue}` in the same slot.
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
        // The scripts call this hash `index`; in Redis its name is `outside`.
        let index = tagged(&format!("{prefix}:outside"), &name);
        let keys = native.chain(java).chain([index]).collect();
        Partition::new(queue, keys, tagged("redisson_delay_queue_channel", &name))
    }

    /// The columns are member ids, record prefixes and payloads.
    fn encode(&self, jobs: &[&NewJob], accepted: i64) -> EncodedJobs {
        let id = |job: &&NewJob| Bytes::from(member::member_id(self.format, job.id));
        let ids: Vec<Bytes> = jobs.iter().map(id).collect();
        let prefix = |job: &&NewJob| Bytes::from(record::encode_prefix(job, accepted));
        let prefixes = jobs.iter().map(prefix).collect();
        let payloads = jobs.iter().map(|job| job.payload.clone()).collect();
        EncodedJobs {
            has_duplicates: ids.iter().collect::<HashSet<_>>().len() < ids.len(),
            has_large_record: false,
            columns: vec![ids, prefixes, payloads],
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

/// Redisson's insertion order.
pub(super) fn order_key(partition: &Partition) -> &str {
    &partition.keys[KINDS.len() + 1]
}

pub(super) fn destination_key(partition: &Partition) -> &str {
    &partition.keys[KINDS.len() + 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_queue_have_its_slot_and_the_prefix_of_its_name() {
        let (prefix, name_prefix) = ("dq".to_owned(), "app:".to_owned());
        let layout = RedissonLayout { prefix, name_prefix, format: Format::Current };
        let partition = layout.partition(&QueueName::new("orders").unwrap(), 1, 0);
        assert_eq!(destination_key(&partition), "app:orders");
        assert_eq!(partition.keys[0], "dq:due:{app:orders}");
        assert_eq!(partition.keys[KINDS.len()], "redisson_delay_queue_timeout:{app:orders}");
        assert_eq!(order_key(&partition), "redisson_delay_queue:{app:orders}");
        assert_eq!(partition.channel, "redisson_delay_queue_channel:{app:orders}");
        assert!(partition.is_in_one_slot());
    }
}
