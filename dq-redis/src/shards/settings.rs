//! The setting `shards`: shard counts by queue.

use std::collections::BTreeMap;

use dq_core::{Error, ErrorKind, QueueName, Result};
use serde::de::{self, IgnoredAny};
use serde::{Deserialize, Deserializer};

use super::layout::MAX_SHARDS;

const ANY: &str = "*";

#[derive(Debug, Default)]
pub(crate) struct ShardSettings {
    named: BTreeMap<QueueName, u16>,
    any: Option<u16>,
}

impl ShardSettings {
    pub(crate) fn new(settings: &BTreeMap<QueueName, u16>) -> Self {
        let mut named = settings.clone();
        let any = named.iter().find(|(queue, _)| queue.as_str() == ANY).map(|(_, shards)| *shards);
        named.retain(|queue, _| queue.as_str() != ANY);
        Self { named, any }
    }

    pub(crate) fn for_queue(&self, queue: &QueueName) -> Option<u16> {
        self.named.get(queue).copied().or(self.any)
    }
}

/// Errors name the queue, unlike serde's own.
pub(crate) fn read<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<BTreeMap<QueueName, u16>, D::Error> {
    let given = BTreeMap::<QueueName, Number>::deserialize(deserializer)?;
    let validate = |(queue, number)| match number {
        Number::Valid(shards) if (1..=MAX_SHARDS).contains(&shards) => Ok((queue, shards)),
        // An error about a configuration file masks the file's strings. A quoted "1" is a likely
        // mistake in it, so this text says "one".
        _ => Err(de::Error::custom(format!(
            "the queue {queue} cannot have that as its number of shards; give it a whole number \
             between one and {MAX_SHARDS}"
        ))),
    };
    given.into_iter().map(validate).collect()
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Valid(u16),
    Other(#[allow(dead_code, reason = "only its kind matters")] IgnoredAny),
}

/// Checks a configuration made in code.
/// Errors: `Config` naming the queue.
pub(crate) fn check(settings: &BTreeMap<QueueName, u16>) -> Result<()> {
    match settings.iter().find(|(_, shards)| !(1..=MAX_SHARDS).contains(*shards)) {
        Some((queue, shards)) => {
            let what = format!("the queue {queue} cannot have {shards} shards");
            Err(Error::new(ErrorKind::Config, what)
                .remedy(format!("give it between 1 and {MAX_SHARDS}"))
                .operation("connect"))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).unwrap()
    }

    #[test]
    fn a_star_stands_for_queues_without_an_entry() {
        let (hot, cold) = (queue("hot"), queue("cold"));
        let settings = ShardSettings::new(&BTreeMap::from([(hot.clone(), 4)]));
        assert_eq!((settings.for_queue(&hot), settings.for_queue(&cold)), (Some(4), None));
        let settings = ShardSettings::new(&BTreeMap::from([(hot.clone(), 4), (queue("*"), 2)]));
        assert_eq!((settings.for_queue(&hot), settings.for_queue(&cold)), (Some(4), Some(2)));
    }

    #[test]
    fn an_invalid_number_is_refused_with_the_name_of_its_queue() {
        let given = |shards| -> serde_json::Result<_> {
            read(&mut serde_json::Deserializer::from_str(&format!("{{\"Q\": {shards}}}")))
        };
        for shards in ["100000", "-1", "0", "257", "\"8\"", "4.0", "[]"] {
            let error = given(shards).unwrap_err().to_string();
            let words = ["queue Q", "one and 256"];
            assert!(words.iter().all(|word| error.contains(word)), "{shards}: {error}");
        }
        assert_eq!(given("256").unwrap(), BTreeMap::from([(queue("Q"), 256)]));
        for (shards, is_valid) in [(0, false), (1, true), (256, true), (257, false)] {
            let checked = check(&BTreeMap::from([(queue("q"), shards)]));
            assert_eq!(checked.is_ok(), is_valid, "{shards}");
        }
    }
}
