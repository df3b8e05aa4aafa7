//! Expiry keys: empty keys `{prefix}:alarm:<due>:<queue>` that expire when jobs are due.

use dq_core::{QueueName, Timestamp};

/// The literal braces are a hash tag, so that all keys of a prefix have one slot in a cluster.
/// `<due>` is Unix milliseconds.
#[derive(Debug, Clone)]
pub(super) struct KeyNames {
    key_prefix: String,
}

impl KeyNames {
    pub(super) fn new(prefix: &str) -> Self {
        Self { key_prefix: format!("{{{prefix}}}:alarm:") }
    }

    /// Not an expiry key, but has the same prefix, to test the user's rights.
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
    fn mutated_names_are_parsed_or_ignored() {
        let names = KeyNames::new("shop");
        let valid = ["{shop}:alarm:1700000000123:q", "{shop}:alarm:-1:a:b"];
        dq_testkit::fuzz::check("names of expiry keys", &valid, |key| {
            let parsed = names.parse(key);
            let is_accepted = parsed.is_some();
            if let Some((queue, due)) = parsed {
                names.key(&queue, due);
            }
            is_accepted
        });
    }

    #[test]
    fn key_names_are_parsed_back() {
        let names = KeyNames::new("shop");
        for queue in ["q", "a:b", "}{", "{x}", "订单", ":"] {
            let queue = QueueName::new(queue).unwrap();
            let due = Timestamp::from_millis(1_700_000_000_123);
            let key = names.key(&queue, due);
            assert_eq!(names.parse(key.as_bytes()), Some((queue, due)), "{key}");
        }
    }

    #[test]
    fn keys_of_other_names_are_not_parsed_as_expiry_keys() {
        let names = KeyNames::new("shop");
        for key in [
            "session:1",
            "{shop}:alarm:",
            "{shop}:alarm:1",
            "{shop}:alarm:1:",
            "{shop}:alarm:soon:q",
            "{shop2}:alarm:1:q",
            "{shop}:canary:1",
            "{shop}:alarm:1:a\nb",
        ] {
            assert_eq!(names.parse(key.as_bytes()), None, "{key}");
        }
        assert_eq!(names.parse(b"{shop}:alarm:1:\xff"), None);
    }
}
