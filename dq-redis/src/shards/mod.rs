//! Shards: a hot queue spread over several slots of a cluster.
//!
//! # Where a job is
//!
//! A job lives in the shard that the hash of its key names, or that of its id if it has no key:
//! `crc16(name) % M`, with the CRC of Redis Cluster. It never moves. When `M` changes, jobs stay
//! where they are and are found because each shard holds the whole [`Layout`](crate::shards::layout::Layout)
//! of the queue, with every `M` that it ever had: the *homes* of a name are `crc16(name) % m` for all
//! of these, the *current home* is the one by the last. New jobs are created in the current home
//! only. Claims, counts and listings visit all shards up to the largest `M`. A count that was used
//! once is never forgotten, so a queue that was changed asks one shard more for some names.
//!
//! # Why a key is never live twice
//!
//! Each change of a layout has an epoch. It is made in the first shard, by comparing and setting, so
//! there is one layout for each epoch; the other shards take it over afterwards and never go back.
//! Every call says which layout it believes in, and a script that creates a job refuses to work if
//! its shard holds another one. Whoever is refused learns the later layout, or brings the shard up
//! to it, and begins anew.
//!
//! To create a job of key `k` in epoch `e`, a process
//!
//! 1. asks the former homes of `k`, each by a script that does nothing unless its shard holds `e`; if
//!    `k` is live there, the conflict is settled there, by that one script, and all is done;
//! 2. creates the job in the current home, by a script that does nothing unless its shard holds `e`,
//!    and that settles a conflict there.
//!
//! Within one epoch all jobs of `k` are created in the same shard, where scripts run one after the
//! other. Suppose then that `k` is created in shard `A` in epoch `e`, and in `B` in a later epoch `f`.
//! `A` is a former home in `f`, since counts are never forgotten, so before the second creation `A`
//! held `f` and was asked. The first creation came before `A` held `f`, as it found `e` there. So the
//! question found that job, unless it had ended. A live job does not become another one's rival by
//! itself: retries and lapsed leases stay in their shard and keep the key.
//!
//! What does make a dead job live again is a replay, and a dead job may be in a former home of its
//! key. So where names have several homes, a replay takes an epoch of its own, marked as such, in
//! which nobody else creates jobs: see `replay.rs`. If it is not ended in time, others end it by the
//! next epoch, which refuses what is left of it for the same reason.
//!
//! # What is approximate
//!
//! One script serves all shards of a queue on a single server, so the oldest jobs are claimed first
//! as they are without shards. In a cluster all slots are asked what is due before those with the
//! oldest jobs are claimed from (`apart.rs`): what others do in between may come out of order.
//! Each shard goes by the clock of its node. Counts and listings are no picture of one moment.

pub(crate) mod adopt;
pub(crate) mod apart;
pub(crate) mod lanes;
pub(crate) mod layout;
pub(crate) mod leases;
mod replay;
pub(crate) mod seek;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use dq_core::{QueueName, Result};
use serde::de::{self, IgnoredAny};
use serde::{Deserialize, Deserializer};

use crate::config::refused;
use crate::shards::layout::MOST;

/// Stands for all queues that are not named.
const ANY: &str = "*";

/// How many shards this process wants queues to have.
#[derive(Debug, Default)]
pub(crate) struct Shards {
    named: BTreeMap<QueueName, u16>,
    any: Option<u16>,
    /// Queues whose layout has been brought in line with this.
    settled: Mutex<HashSet<QueueName>>,
}

impl Shards {
    pub(crate) fn new(named: &BTreeMap<QueueName, u16>) -> Self {
        let mut named = named.clone();
        let any = named.iter().find(|(queue, _)| queue.as_str() == ANY).map(|(_, count)| *count);
        named.retain(|queue, _| queue.as_str() != ANY);
        Self { named, any, settled: Mutex::default() }
    }

    /// Those of these queues that are to be brought in line, with their numbers of shards.
    pub(crate) fn wanted<'a>(
        &self,
        queues: impl IntoIterator<Item = &'a QueueName>,
    ) -> BTreeMap<&'a QueueName, u16> {
        if self.named.is_empty() && self.any.is_none() {
            return BTreeMap::new();
        }
        let settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        let unsettled = queues.into_iter().filter(|queue| !settled.contains(*queue));
        unsettled.filter_map(|queue| Some((queue, self.of(queue)?))).collect()
    }

    /// Notes that a queue has been brought in line. Others may change it later: that holds then.
    pub(crate) fn settle(&self, queue: &QueueName) {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner).insert(queue.clone());
    }

    fn of(&self, queue: &QueueName) -> Option<u16> {
        self.named.get(queue).copied().or(self.any)
    }
}

/// Reads numbers of shards. What is none is refused with the name of its queue: the path alone does
/// not say which of them it is.
pub(crate) fn read<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<BTreeMap<QueueName, u16>, D::Error> {
    let given = BTreeMap::<QueueName, Count>::deserialize(deserializer)?;
    let read = |(queue, count)| match count {
        Count::Number(count) if (1..=MOST).contains(&count) => Ok((queue, count)),
        // In words: errors of files have stars wherever they repeat a number of the same table.
        _ => Err(de::Error::custom(format!(
            "the queue {queue} cannot have that as its number of shards; give it a whole number \
             between one and 256"
        ))),
    };
    given.into_iter().map(read).collect()
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Count {
    Number(u16),
    Other(#[allow(dead_code, reason = "only that it is something else counts")] IgnoredAny),
}

/// Refuses numbers of shards that cannot be.
pub(crate) fn check(shards: &BTreeMap<QueueName, u16>) -> Result<()> {
    match shards.iter().find(|(_, count)| !(1..=MOST).contains(*count)) {
        Some((queue, count)) => Err(refused(
            format!("the queue {queue} cannot have {count} shards"),
            "give it between 1 and 256",
        )),
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
    fn queues_are_brought_in_line_once_and_only_if_somebody_wants_it() {
        let (hot, cold) = (queue("hot"), queue("cold"));
        let shards = Shards::new(&BTreeMap::from([(hot.clone(), 4)]));
        assert_eq!(shards.wanted([&hot, &cold, &hot]), BTreeMap::from([(&hot, 4)]));
        shards.settle(&hot);
        assert!(shards.wanted([&hot, &cold]).is_empty());
    }

    #[test]
    fn a_star_stands_for_the_others() {
        let (hot, cold) = (queue("hot"), queue("cold"));
        let shards = Shards::new(&BTreeMap::from([(hot.clone(), 4), (queue("*"), 2)]));
        assert_eq!(shards.wanted([&hot, &cold]), BTreeMap::from([(&hot, 4), (&cold, 2)]));
    }

    #[test]
    fn what_is_no_number_of_shards_is_refused_with_the_name_of_its_queue() {
        let given = |count| -> serde_json::Result<_> {
            let text = format!("{{\"Q\": {count}}}");
            read(&mut serde_json::Deserializer::from_str(&text))
        };
        for count in ["100000", "-1", "0", "257", "\"8\"", "4.0", "[]", "99999999999999999999"] {
            let error = given(count).unwrap_err().to_string();
            assert!(error.contains("queue Q") && error.contains("one and 256"), "{count}: {error}");
        }
        assert_eq!(given("256").unwrap(), BTreeMap::from([(queue("Q"), 256)]));
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        for (count, sound) in [(0, false), (1, true), (256, true), (257, false)] {
            assert_eq!(check(&BTreeMap::from([(queue("q"), count)])).is_ok(), sound, "{count}");
        }
    }
}
