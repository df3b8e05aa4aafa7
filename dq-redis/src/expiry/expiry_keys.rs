//! Expiry keys: empty keys `{prefix}:alarm:<due>:<queue>` that expire when jobs are due, in Unix
//! milliseconds.

use dq_core::{QueueName, Timestamp};

/// The literal braces are a hash tag: all keys of a prefix have one slot in a cluster.
#[derive(Debug, Clone)]
pub(super) struct KeyNames {
    key_prefix: String,
}

impl KeyNames {
    pub(super) fn new(prefix: &str) -> Self {
        Self { key_prefix: format!("{{{prefix}}}:alarm:") }
    }

    /// For testing the user's rights. It is no expiry key.
    pub(super) fn test_key(&self) -> String {
        format!("{}rights", self.key_prefix)
    }

    pub(super) fn key(&self, queue: &QueueName, due: Timestamp) -> String {
        format!("{}{}:{queue}", self.key_prefix, due.as_millis())
    }

    pub(super) fn parse(&self, key: &[u8]) -> Option<(QueueName, Timestamp)> {
        let rest = str::from_utf8(key.strip_prefix(self.key_prefix.as_bytes())?).ok()?;
        let (due, queue) = rest.split_once(':')?;
        Some((QueueName::new(queue).ok()?, Timestamp::from_millis(due.parse().ok()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_expiry_keys_are_parsed() {
        let names = KeyNames::new("shop");
        let due = Timestamp::from_millis(1_700_000_000_123);
        for queue in ["q", "a:b", "}{", "订单", ":"] {
            let queue = QueueName::new(queue).unwrap();
            let key = names.key(&queue, due);
            assert_eq!(names.parse(key.as_bytes()), Some((queue, due)), "{key}");
        }
        for key in ["session:1", "{shop}:alarm:1:", "{shop}:alarm:soon:q", "{shop2}:alarm:1:q"] {
            assert_eq!(names.parse(key.as_bytes()), None, "{key}");
        }

        let valid = ["{shop}:alarm:1700000000123:q", "{shop}:alarm:-1:a:b"];
        dq_testkit::fuzz::check("names of expiry keys", &valid, |key| names.parse(key).is_some());
    }
}
