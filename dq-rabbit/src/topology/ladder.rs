//! The delay ladder: queues with a constant time to live through which messages wait.
//!
//! RabbitMQ expires messages only at the head of a queue, so all messages of a queue need the same
//! time to live. The ladder writes the remaining delay as a number, and has a queue for each
//! digit's value. A message waits in one queue for each non-zero digit, highest first. When it
//! expires, the broker dead-letters it to the next level's exchange; exchanges pass zeros on.
//!
//! The digits are years (360 days), months (30 days), days, quarters of an hour, and ten seconds. A
//! delay below a minute has a single digit, in seconds, on the lowest level. So ten seconds, a
//! quarter of an hour, a day or a week is one queue, and any delay below a day at most two. Longer
//! delays skip the seconds, because moving a message costs more than storing it.
//!
//! Each queue expires its messages early by the *guard*, the time that the broker takes to move
//! one. The consumer holds a job for the rest.
//!
//! In routing keys, the lowest digit comes first and high zeros are left out: the broker compares
//! topics word by word, and most messages are on low levels. With a delay of one hour and 20
//! seconds, a message is published to the exchange `l2` with the routing key `0.2.4.TOPIC`. It
//! waits in `l2.4` (four quarters of an hour), then in `l1.2` (two times ten seconds).

use dq_core::Timestamp;
use lapin::types::ShortString;

use crate::config::{LadderKind, QueueKind};
use crate::topology::names::{LEVELS, ObjectNames, Topic};

/// The unit of the lowest level: one second.
pub(crate) const TICK_MS: i64 = 1_000;

/// Lowest level first.
const UNITS_MS: [i64; LEVELS] =
    [TICK_MS, 10_000, 900_000, 86_400_000, 30 * 86_400_000, 360 * 86_400_000];

/// The base of each digit, lowest first.
const RADICES: [u32; LEVELS] = [60, 90, 96, 30, 12, 10];

/// Shorter delays use only the lowest level, longer ones only the others.
const SHORT_MS: i64 = 60 * TICK_MS;

/// All digits at their maximum. Messages for later jobs walk the ladder again.
const MAX_DELAY_MS: i64 = UNITS_MS[LEVELS - 1] * RADICES[LEVELS - 1] as i64 - 1;

/// Added to delays, so that a quarter of an hour is still one digit after the milliseconds of a
/// call. Less than any guard, so it makes no job late.
const SLACK_MS: i64 = 10;

const MAX_PLUGIN_DELAY_MS: i64 = u32::MAX as i64;

/// How early a queue expires its messages. A busy broker moves nearly all messages faster.
const fn guard_ms(kind: QueueKind) -> i64 {
    match kind {
        QueueKind::Quorum => 50,
        QueueKind::Classic => 100,
    }
}

/// A queue of the ladder, for one digit of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LadderQueue {
    pub(crate) level: usize,
    pub(crate) digit: u32,
    pub(crate) ttl_ms: i64,
}

pub(crate) fn queues(kind: QueueKind) -> impl Iterator<Item = LadderQueue> {
    let guard = guard_ms(kind);
    (0..LEVELS).flat_map(move |level| {
        (1..RADICES[level]).map(move |digit| LadderQueue {
            level,
            digit,
            ttl_ms: UNITS_MS[level] * i64::from(digit) - guard,
        })
    })
}

/// Lowest first.
fn digits(remaining_ms: i64) -> [u32; LEVELS] {
    let delay_ms = remaining_ms.saturating_add(SLACK_MS).clamp(0, MAX_DELAY_MS);
    std::array::from_fn(|level| {
        if (delay_ms < SHORT_MS) != (level == 0) {
            return 0;
        }
        let digit = delay_ms / UNITS_MS[level] % i64::from(RADICES[level]);
        u32::try_from(digit).expect("a digit is smaller than its radix")
    })
}

/// Zero binds the exchange of the next lower level.
pub(crate) fn binding_key(level: usize, digit: u32) -> ShortString {
    format!("{}{digit}.#", "*.".repeat(level)).into()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) exchange: ShortString,
    /// Digits from the lowest to the highest that is not zero, and the topic.
    pub(crate) routing_key: ShortString,
    /// The header `x-delay` for the plugin; `None` if the ladder delays.
    pub(crate) delay_ms: Option<i64>,
}

/// Routes messages through the ladder, or through the plugin's exchange.
#[derive(Debug)]
pub(crate) struct Ladder {
    pub(super) names: ObjectNames,
    pub(super) kind: LadderKind,
    pub(super) has_plugin: bool,
}

impl Ladder {
    pub(crate) fn has_messages(&self) -> bool {
        self.kind != LadderKind::None
    }

    /// Routes a message. One for a job beyond the longest delay arrives too early and is published
    /// again.
    pub(crate) fn route(&self, topic: &Topic, due: Timestamp, now: Timestamp) -> Route {
        let remaining_ms = due.as_millis().saturating_sub(now.as_millis());
        if self.has_plugin {
            return self.plugin_route(topic, remaining_ms);
        }
        let digits = digits(remaining_ms);
        let highest = (0..LEVELS).rev().find(|level| digits[*level] != 0);
        let exchange = highest.map_or_else(|| self.names.due(), |level| self.names.level(level));
        let digits = &digits[..highest.map_or(0, |level| level + 1)];
        Route { exchange, routing_key: routing_key(digits, topic), delay_ms: None }
    }

    fn plugin_route(&self, topic: &Topic, remaining_ms: i64) -> Route {
        let routing_key = routing_key(&[], topic);
        // A little early, as with the ladder: the consumer holds the job until it is due.
        let delay_ms = remaining_ms.saturating_sub(TICK_MS / 2);
        if delay_ms <= 0 {
            return Route { exchange: self.names.due(), routing_key, delay_ms: None };
        }
        let delay_ms = Some(delay_ms.min(MAX_PLUGIN_DELAY_MS));
        Route { exchange: self.names.delayed(), routing_key, delay_ms }
    }

    /// The longest time from a message's arrival to its first job's due time.
    pub(crate) const fn max_early_ms(kind: QueueKind) -> i64 {
        // The lowest unit of longer delays.
        UNITS_MS[1] + LEVELS as i64 * guard_ms(kind)
    }
}

fn routing_key(digits: &[u32], topic: &Topic) -> ShortString {
    use std::fmt::Write;

    let mut key = String::with_capacity(24 + topic.as_str().len());
    for digit in digits {
        write!(key, "{digit}.").expect("writing to a string does not fail");
    }
    key.push_str(topic.as_str());
    key.into()
}

#[cfg(test)]
mod tests {
    use dq_core::QueueName;
    use proptest::prelude::*;

    use super::*;

    const DAY: i64 = 86_400_000;

    fn topic() -> Topic {
        Topic::of(&QueueName::new("mail").unwrap())
    }

    fn ladder(has_plugin: bool) -> Ladder {
        Ladder { names: ObjectNames::new("dq"), kind: LadderKind::Full, has_plugin }
    }

    fn route(left: i64) -> Route {
        let now = Timestamp::from_millis(1_800_000_000_123);
        let due = Timestamp::from_millis(now.as_millis().saturating_add(left));
        ladder(false).route(&topic(), due, now)
    }

    #[test]
    fn common_delays_wait_in_one_queue() {
        for (left, exchange, key) in [
            (5_000, "dq.v1.l0", "5.mail"),
            (59_000, "dq.v1.l0", "59.mail"),
            (60_000, "dq.v1.l1", "0.6.mail"),
            (10 * 60_000, "dq.v1.l1", "0.60.mail"),
            (15 * 60_000, "dq.v1.l2", "0.0.1.mail"),
            (3_600_000, "dq.v1.l2", "0.0.4.mail"),
            (DAY, "dq.v1.l3", "0.0.0.1.mail"),
            (7 * DAY, "dq.v1.l3", "0.0.0.7.mail"),
            (60 * DAY, "dq.v1.l4", "0.0.0.0.2.mail"),
            (720 * DAY, "dq.v1.l5", "0.0.0.0.0.2.mail"),
        ] {
            for elapsed in [0, 1, SLACK_MS] {
                let route = route(left - elapsed);
                assert_eq!((route.exchange.as_str(), route.routing_key.as_str()), (exchange, key));
            }
        }
    }

    #[test]
    fn due_and_distant_jobs_take_the_shortest_and_the_longest_route() {
        for (left, exchange, key) in [
            (i64::MIN, "dq.v1.due", "mail"),
            (TICK_MS - SLACK_MS - 1, "dq.v1.due", "mail"),
            (90_500, "dq.v1.l1", "0.9.mail"),
            (15 * 60_000 - SLACK_MS - 1, "dq.v1.l1", "0.89.mail"),
            (3600 * DAY, "dq.v1.l5", "0.89.95.29.11.9.mail"),
            (i64::MAX, "dq.v1.l5", "0.89.95.29.11.9.mail"),
        ] {
            let route = route(left);
            assert_eq!(
                (route.exchange.as_str(), route.routing_key.as_str()),
                (exchange, key),
                "{left}"
            );
        }
    }

    #[test]
    fn plugin_delays_are_limited_to_what_the_plugin_supports() {
        for (left, exchange, delay_ms) in [
            (100, "dq.v1.due", None),
            (10_000, "dq.v1.delayed", Some(9_500)),
            (i64::MAX, "dq.v1.delayed", Some(4_294_967_295)),
        ] {
            let due = Timestamp::from_millis(left);
            let route = ladder(true).route(&topic(), due, Timestamp::from_millis(0));
            assert_eq!((route.exchange.as_str(), route.delay_ms), (exchange, delay_ms));
        }
    }

    /// The queues that the broker moves a message through.
    fn walk(route: &Route, kind: QueueKind) -> Vec<LadderQueue> {
        let names = ObjectNames::new("dq");
        let words: Vec<&str> = route.routing_key.as_str().split('.').collect();
        let from = (0..LEVELS).rev().find(|level| names.level(*level) == route.exchange);
        let all: Vec<LadderQueue> = queues(kind).collect();
        let levels = from.map_or(0, |level| level + 1);
        let mut path = Vec::new();
        for level in (0..levels).rev() {
            let digit: u32 = words[level].parse().unwrap();
            path.extend(all.iter().find(|queue| (queue.level, queue.digit) == (level, digit)));
        }
        path
    }

    proptest! {
        #[test]
        fn messages_are_delivered_shortly_before_they_are_due(
            left in prop_oneof![0..5_000i64, 0..120_000i64, 0..DAY, 0..3600 * DAY - 10_000],
            classic: bool,
        ) {
            let kind = if classic { QueueKind::Classic } else { QueueKind::Quorum };
            let path = walk(&route(left), kind);
            let waited: i64 = path.iter().map(|queue| queue.ttl_ms).sum();
            let hops = i64::try_from(path.len()).unwrap();
            let left = left.min(MAX_DELAY_MS);
            prop_assert!(waited <= left, "{left}: {waited} by {path:?}");
            let unit = if left + SLACK_MS < 60_000 { 1_000 } else { 10_000 };
            prop_assert!(waited > left - unit - hops * guard_ms(kind), "{left}: {waited} by {path:?}");
            prop_assert!(waited >= left - Ladder::max_early_ms(kind));
        }
    }
}
