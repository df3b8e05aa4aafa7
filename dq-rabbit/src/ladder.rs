//! How a job waits: a walk down a ladder of queues, one for each digit of the time that is left.
//!
//! Less than a minute is written in seconds. A longer time is written much as one writes time: years of
//! 360 days, months of 30 days, days, quarters of an hour, and ten seconds. For each digit that is not
//! zero there is a queue whose messages all live equally long, so none waits behind another that lives
//! longer. What has lived its time goes to the exchange of the next level, and zeros are passed over
//! between exchanges. Ten seconds, a quarter of an hour, a day or a week is one queue; any time of less
//! than a day is two at most.
//!
//! Each queue lets its messages go a little early (the *guard*), so that the broker's own delay on the
//! way does not make jobs late. The runner holds a job for the rest: less than a second, or than ten if it
//! waited a minute or more, and a guard for each queue that it went through. To pass a message on costs the broker more
//! than to store it did, so those of more than a minute do not go through a queue of seconds as well.
//!
//! In routing keys the digits stand from the lowest up, without the zeros at the end: a broker
//! compares topics word by word, and most messages are in the lowest levels.

use dq_core::Timestamp;
use lapin::types::ShortString;

use crate::config::QueueKind;
use crate::names::{Names, Topic};

/// How many digits a time has.
pub(crate) const LEVELS: usize = 6;

/// How many values each digit has, from the lowest up.
const RADICES: [u32; LEVELS] = [60, 90, 96, 30, 12, 10];

/// What the unit of each level is worth in milliseconds. The lowest is for times that need no other; all
/// from the second up make one number.
const UNITS_MS: [i64; LEVELS] =
    [TICK_MS, 10_000, 900_000, 86_400_000, 30 * 86_400_000, 360 * 86_400_000];

/// The unit of the lowest digit.
pub(crate) const TICK_MS: i64 = 1_000;

/// What is shorter is written in the lowest digit alone.
const SHORT_MS: i64 = TICK_MS * RADICES[0] as i64;

/// What time is rounded up by before it is cut into digits, so that a quarter of an hour is still one
/// digit after the milliseconds that a call takes. Less than any guard, so that nobody is late for it.
const SLACK_MS: i64 = 10;

/// The longest time that the plugin takes.
const LONGEST_OF_PLUGIN: i64 = u32::MAX as i64;

/// All digits at their largest: what is due later goes round again.
const LONGEST_MS: i64 = UNITS_MS[LEVELS - 1] * RADICES[LEVELS - 1] as i64 - 1;

/// By how much a queue lets its messages go early: longer than a broker with much else to do takes to
/// pass on nearly all of them.
pub(crate) const fn guard_ms(kind: QueueKind) -> i64 {
    match kind {
        QueueKind::Quorum => 50,
        QueueKind::Classic => 100,
    }
}

/// One queue of the ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// The level, from the lowest up.
    pub(crate) level: usize,
    /// The digit, never zero.
    pub(crate) digit: u32,
    /// How long messages live there.
    pub(crate) ttl_ms: i64,
}

/// All queues of the ladder, from the shortest.
pub(crate) fn steps(kind: QueueKind) -> impl Iterator<Item = Step> {
    let guard = guard_ms(kind);
    (0..LEVELS).flat_map(move |level| {
        (1..RADICES[level]).map(move |digit| Step {
            level,
            digit,
            ttl_ms: UNITS_MS[level] * i64::from(digit) - guard,
        })
    })
}

/// The key of the binding by which the exchange of a level knows a digit of it. Zero leads to the
/// exchange below.
pub(crate) fn binding(level: usize, digit: u32) -> ShortString {
    format!("{}{digit}.#", "*.".repeat(level)).into()
}

/// Where a message goes so that it comes back in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    /// The exchange.
    pub(crate) exchange: ShortString,
    /// The digits from the lowest up to the highest that is not zero, and the topic.
    pub(crate) routing_key: ShortString,
    /// What the header `x-delay` says to the plugin; absent where the ladder delays.
    pub(crate) delay_ms: Option<i64>,
}

/// Finds routes.
#[derive(Debug)]
pub(crate) struct Ladder {
    due: ShortString,
    levels: [ShortString; LEVELS],
    plugin: Option<ShortString>,
}

impl Ladder {
    /// Routes over the queues of the ladder.
    pub(crate) fn new(names: &Names) -> Self {
        Self {
            due: names.due(),
            levels: std::array::from_fn(|level| names.level(level)),
            plugin: None,
        }
    }

    /// Routes over the exchange of the plugin.
    pub(crate) fn of_plugin(names: &Names) -> Self {
        Self { plugin: Some(names.delayed()), ..Self::new(names) }
    }

    /// The way for a job that is due then. What is due later than the ladder reaches comes back
    /// before its time, and has to be sent again; so has whatever comes back more than
    /// [`early_ms`](Self::early_ms), and the span of a carrier, before its time.
    pub(crate) fn route(&self, topic: &Topic, due: Timestamp, now: Timestamp) -> Route {
        let left = due.as_millis().saturating_sub(now.as_millis());
        if let Some(plugin) = &self.plugin {
            return self.route_by_plugin(plugin, topic, left);
        }
        let digits = digits(left);
        let highest = (0..LEVELS).rev().find(|level| digits[*level] != 0);
        let exchange = highest.map_or(&self.due, |level| &self.levels[level]).clone();
        let digits = &digits[..highest.map_or(0, |level| level + 1)];
        Route { exchange, routing_key: key(digits, topic), delay_ms: None }
    }

    fn route_by_plugin(&self, plugin: &ShortString, topic: &Topic, left: i64) -> Route {
        let routing_key = key(&[], topic);
        // One moment early, as on the ladder: the runner holds it.
        let left = left.saturating_sub(TICK_MS / 2);
        if left <= 0 {
            return Route { exchange: self.due.clone(), routing_key, delay_ms: None };
        }
        let delay_ms = Some(left.min(LONGEST_OF_PLUGIN));
        Route { exchange: plugin.clone(), routing_key, delay_ms }
    }

    /// By how much at most a message comes back early if the broker is in time.
    pub(crate) const fn early_ms(kind: QueueKind) -> i64 {
        UNITS_MS[1] + LEVELS as i64 * guard_ms(kind)
    }
}

/// The digits of what is left, from the lowest up.
fn digits(left_ms: i64) -> [u32; LEVELS] {
    let left = left_ms.saturating_add(SLACK_MS).clamp(0, LONGEST_MS);
    std::array::from_fn(|level| {
        let is_written = if left < SHORT_MS { level == 0 } else { level > 0 };
        let digit = left / UNITS_MS[level] % i64::from(RADICES[level]);
        if is_written {
            u32::try_from(digit).expect("a digit is smaller than its radix")
        } else {
            0
        }
    })
}

fn key(digits: &[u32], topic: &Topic) -> ShortString {
    use std::fmt::Write;

    let mut key = String::with_capacity(24 + topic.as_str().len());
    for digit in digits {
        write!(key, "{digit}.").expect("text takes all that is written");
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

    fn route(left: i64) -> Route {
        let now = Timestamp::from_millis(1_800_000_000_123);
        let due = Timestamp::from_millis(now.as_millis().saturating_add(left));
        Ladder::new(&Names::new("dq")).route(&topic(), due, now)
    }

    #[test]
    fn the_ladder_has_292_queues_with_times_of_a_calendar() {
        let steps: Vec<_> = steps(QueueKind::Quorum).collect();
        assert_eq!(steps.len(), 59 + 89 + 95 + 29 + 11 + 9);
        for (level, digit, ttl) in
            [(0, 1, 1_000), (1, 1, 10_000), (2, 1, 900_000), (2, 4, 3_600_000), (3, 7, 7 * DAY)]
        {
            assert!(steps.contains(&Step { level, digit, ttl_ms: ttl - 50 }), "{level}.{digit}");
        }
        assert_eq!(steps.last().unwrap().ttl_ms, 9 * 360 * DAY - 50);
        // The broker takes no more than ten years of 365 days.
        assert!(steps.last().unwrap().ttl_ms < 3650 * DAY);
    }

    #[test]
    fn times_that_people_name_are_one_queue() {
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
            // A call may have taken some milliseconds.
            for taken in [0, 1, SLACK_MS] {
                let found = route(left - taken);
                assert_eq!(found.exchange.as_str(), exchange);
                assert_eq!(found.routing_key.as_str(), key);
            }
        }
        assert_eq!(route(15 * 60_000 - SLACK_MS - 1).routing_key.as_str(), "0.89.mail");
        assert_eq!(route(90_500).routing_key.as_str(), "0.9.mail");
    }

    #[test]
    fn what_is_due_does_not_wait_and_what_is_far_goes_as_far_as_it_can() {
        for left in [i64::MIN, -1, 0, 1, TICK_MS - SLACK_MS - 1] {
            assert_eq!(route(left).exchange.as_str(), "dq.v1.due");
            assert_eq!(route(left).routing_key.as_str(), "mail");
        }
        for left in [3600 * DAY, 40_000 * DAY, i64::MAX] {
            assert_eq!(route(left).exchange.as_str(), "dq.v1.l5");
            assert_eq!(route(left).routing_key.as_str(), "0.89.95.29.11.9.mail");
        }
    }

    #[test]
    fn bindings_look_at_the_digit_of_their_level() {
        assert_eq!(binding(0, 3).as_str(), "3.#");
        assert_eq!(binding(1, 0).as_str(), "*.0.#");
        assert_eq!(binding(5, 9).as_str(), "*.*.*.*.*.9.#");
    }

    #[test]
    fn the_plugin_gets_what_it_can_count() {
        let ladder = Ladder::of_plugin(&Names::new("dq"));
        let now = Timestamp::from_millis(0);
        let at = |left| ladder.route(&topic(), Timestamp::from_millis(left), now);
        assert_eq!(at(100).exchange.as_str(), "dq.v1.due");
        assert_eq!(at(100).delay_ms, None);
        assert_eq!(at(10_000).exchange.as_str(), "dq.v1.delayed");
        assert_eq!(at(10_000).delay_ms, Some(9_500));
        assert_eq!(at(i64::MAX).delay_ms, Some(4_294_967_295));
    }

    /// What bindings and dead-lettering of the broker do with a message: the steps it goes through.
    fn walk(found: &Route, kind: QueueKind) -> Vec<Step> {
        let names = Names::new("dq");
        let words: Vec<&str> = found.routing_key.as_str().split('.').collect();
        let from = (0..LEVELS).rev().find(|level| names.level(*level) == found.exchange);
        let all: Vec<Step> = steps(kind).collect();
        let levels = from.map_or(0, |level| level + 1);
        let mut way = Vec::new();
        for level in (0..levels).rev() {
            let digit: u32 = words[level].parse().unwrap();
            way.extend(all.iter().find(|step| (step.level, step.digit) == (level, digit)));
        }
        way
    }

    proptest! {
        #[test]
        fn messages_come_back_before_they_are_due_and_not_long_before(
            left in prop_oneof![0..5_000i64, 0..120_000i64, 0..DAY, 0..3600 * DAY - 10_000],
            classic: bool,
        ) {
            let kind = if classic { QueueKind::Classic } else { QueueKind::Quorum };
            let way = walk(&route(left), kind);
            let waited: i64 = way.iter().map(|step| step.ttl_ms).sum();
            let hops = i64::try_from(way.len()).unwrap();
            prop_assert!(waited <= left, "{left}: {waited} by {way:?}");
            let unit = if left + SLACK_MS < 60_000 { 1_000 } else { 10_000 };
            prop_assert!(waited > left - unit - hops * guard_ms(kind), "{left}: {waited} by {way:?}");
            prop_assert!(waited >= left - Ladder::early_ms(kind));
        }
    }
}
