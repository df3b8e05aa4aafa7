//! The last hour and day of each queue, as this process observed them.
//!
//! Stores keep no past. Each overview already reads lifetime totals and runner announcements, so
//! two readings show the jobs done between them. The hour is kept in 1-minute slots, the day in
//! 15-minute slots, both in memory. Readings more than [`MAX_READING_GAP`] apart leave a gap.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dq_core::sync::lock;
use dq_core::{QueueName, QueueStats, RegisteredRunner, Timestamp};

/// The longest time between two readings that counts as watched, in milliseconds.
const MAX_READING_GAP: i64 = 5 * 60_000;

/// Queues that a slot counts; its total still covers all.
const MAX_QUEUES: usize = 1_000;

/// How far back to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PastWindow {
    /// The last hour, in 1-minute slots.
    Hour,
    /// The last 24 hours, in 15-minute slots.
    Day,
}

/// The observed last hour or day, for one queue or all.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Past {
    /// When this process began to watch; `None` before its first reading.
    pub since: Option<Timestamp>,
    /// Slot length.
    pub step: Duration,
    /// When the first slot starts.
    pub from: Timestamp,
    /// The slots, oldest first; `None` for a slot without readings. The last slot is still open.
    pub slots: Vec<Option<PastSlot>>,
}

/// One slot of a [`Past`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct PastSlot {
    /// How much of the slot this process watched.
    pub watched: Duration,
    /// Jobs done or skipped; 0 if the store does not count them.
    pub done: f64,
    /// Failed runs.
    pub failed: f64,
    /// The highest lateness p99 among the readings, in milliseconds; for all queues, that of the
    /// worst queue. Each reading covers the five minutes before it. `None` if nothing ran.
    pub late_p99_ms: Option<u64>,
}

/// What happened in a queue, or in all, during a slot.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    done: f64,
    failed: f64,
    late_p99_ms: Option<u64>,
}

impl Counts {
    fn is_empty(&self) -> bool {
        self.done == 0.0 && self.failed == 0.0 && self.late_p99_ms.is_none()
    }

    /// Adds a share of the counts, and the whole p99.
    fn add(&mut self, other: &Self, share: f64) {
        self.done += other.done * share;
        self.failed += other.failed * share;
        self.late_p99_ms = self.late_p99_ms.max(other.late_p99_ms);
    }
}

/// The counts of one minute or quarter of an hour.
#[derive(Debug)]
struct Slot {
    /// Slots from 1970 to this one.
    number: i64,
    watched_ms: i64,
    total: Counts,
    queues: HashMap<QueueName, Counts>,
}

/// The latest slots; older ones make room for new ones.
#[derive(Debug)]
struct Ring {
    /// The length of a slot in milliseconds.
    slot_length: i64,
    slot_count: i64,
    /// Watched slots only, oldest first.
    slots: VecDeque<Slot>,
}

impl Ring {
    fn of(window: PastWindow) -> Self {
        let (slot_length, slot_count) = match window {
            PastWindow::Hour => (60_000, 60),
            PastWindow::Day => (15 * 60_000, 96),
        };
        Self { slot_length, slot_count, slots: VecDeque::new() }
    }

    /// Spreads the counts evenly over the slots between two times, in Unix milliseconds.
    fn add(&mut self, from: i64, to: i64, total: &Counts, queues: &[(QueueName, Counts)]) {
        let last = to.div_euclid(self.slot_length);
        for number in from.div_euclid(self.slot_length)..=last {
            let slot_begin = number * self.slot_length;
            let (begin, end) = (from.max(slot_begin), to.min(slot_begin + self.slot_length));
            if end <= begin {
                continue;
            }
            let share = (end - begin) as f64 / (to - from) as f64;
            if self.slots.back().is_none_or(|slot| slot.number < number) {
                let (total, queues) = Default::default();
                self.slots.push_back(Slot { number, watched_ms: 0, total, queues });
            }
            let Some(slot) = self.slots.back_mut() else { continue };
            slot.watched_ms += end - begin;
            slot.total.add(total, share);
            for (queue, counts) in queues {
                if slot.queues.len() < MAX_QUEUES || slot.queues.contains_key(queue) {
                    slot.queues.entry(queue.clone()).or_default().add(counts, share);
                }
            }
        }
        while self.slots.front().is_some_and(|slot| slot.number <= last - self.slot_count) {
            self.slots.pop_front();
        }
    }

    fn view(&self, queue: Option<&QueueName>, now: i64) -> (Timestamp, Vec<Option<PastSlot>>) {
        let first = now.div_euclid(self.slot_length) - self.slot_count + 1;
        let mut slots = vec![None; usize::try_from(self.slot_count).unwrap_or_default()];
        for slot in &self.slots {
            let position = usize::try_from(slot.number - first).ok();
            let Some(place) = position.and_then(|position| slots.get_mut(position)) else {
                continue;
            };
            let counts = match queue {
                None => slot.total,
                Some(queue) => slot.queues.get(queue).copied().unwrap_or_default(),
            };
            *place = Some(PastSlot {
                watched: Duration::from_millis(slot.watched_ms.unsigned_abs()),
                done: counts.done,
                failed: counts.failed,
                late_p99_ms: counts.late_p99_ms,
            });
        }
        (Timestamp::from_millis(first * self.slot_length), slots)
    }
}

/// What an overview has read: counts that only grow.
#[derive(Debug, Default)]
struct Reading {
    /// The store's time, in Unix milliseconds.
    at: i64,
    /// Lifetime jobs done or skipped.
    done: HashMap<QueueName, u64>,
    /// Failed runs since the runner started, by runner name and start time.
    failed: HashMap<(String, i64), HashMap<QueueName, u64>>,
}

impl Reading {
    fn of(at: i64, stats: &[QueueStats], runners: &[RegisteredRunner]) -> Self {
        let done = stats.iter().filter_map(|stats| {
            let totals = stats.totals?;
            Some((stats.queue.clone(), totals.done.saturating_add(totals.skipped)))
        });
        let failed = runners.iter().filter_map(|runner| {
            let info = runner.info.as_ref().ok()?;
            let queues = info.queues.iter().map(|queue| (queue.queue.clone(), queue.failed));
            Some(((runner.name.clone(), info.started.as_millis()), queues.collect()))
        });
        Self { at, done: done.collect(), failed: failed.collect() }
    }

    /// Returns what happened since the reading before.
    fn since(&self, before: &Self) -> HashMap<QueueName, Counts> {
        let mut changes: HashMap<QueueName, Counts> = HashMap::new();
        for (queue, done) in &self.done {
            // A new queue starts at zero.
            let before = before.done.get(queue).copied().unwrap_or(0);
            changes.entry(queue.clone()).or_default().done = done.saturating_sub(before) as f64;
        }
        for (runner, queues) in &self.failed {
            let (_, started) = runner;
            let known = before.failed.get(runner);
            let is_new = known.is_none() && *started >= before.at;
            for (queue, failed) in queues {
                let earlier = known.and_then(|queues| queues.get(queue).copied());
                // Without an earlier count, nobody knows when these runs failed: the runner was
                // away, or did not announce the queue.
                let Some(earlier) = earlier.or(is_new.then_some(0)) else { continue };
                let failed = failed.saturating_sub(earlier) as f64;
                changes.entry(queue.clone()).or_default().failed += failed;
            }
        }
        changes
    }
}

#[derive(Debug)]
struct State {
    since: Option<Timestamp>,
    last_read_at: Option<Instant>,
    last: Reading,
    hour: Ring,
    day: Ring,
}

#[derive(Debug, Clone)]
pub(crate) struct Watch {
    // A blocking mutex suffices: it is held for microseconds and never across an await.
    state: Arc<Mutex<State>>,
}

impl Default for Watch {
    fn default() -> Self {
        let (hour, day) = (Ring::of(PastWindow::Hour), Ring::of(PastWindow::Day));
        let last = Reading::default();
        let state = State { since: None, last_read_at: None, last, hour, day };
        Self { state: Arc::new(Mutex::new(state)) }
    }
}

impl Watch {
    pub(crate) fn record(
        &self,
        now: Timestamp,
        stats: &[QueueStats],
        runners: &[RegisteredRunner],
        late_p99_ms: impl IntoIterator<Item = (QueueName, u64)>,
    ) {
        let mut reading = Reading::of(now.as_millis(), stats, runners);
        let mut state = lock(&self.state);
        let state = &mut *state;
        state.last_read_at = Some(Instant::now());
        let gap = reading.at - state.last.at;
        if state.since.is_none() {
            state.since = Some(now);
        } else if gap <= 0 {
            // A concurrent overview has already recorded this time or a later one.
            return;
        } else if gap <= MAX_READING_GAP {
            let mut changes = reading.since(&state.last);
            for (queue, late) in late_p99_ms {
                changes.entry(queue).or_default().late_p99_ms = Some(late);
            }
            changes.retain(|queue, counts| !queue.is_reserved() && !counts.is_empty());
            let mut total = Counts::default();
            changes.values().for_each(|counts| total.add(counts, 1.0));
            let changes: Vec<_> = changes.into_iter().collect();
            for ring in [&mut state.hour, &mut state.day] {
                ring.add(state.last.at, reading.at, &total, &changes);
            }
        }
        // A queue that disappears for a while does not restart at zero.
        for (queue, done) in std::mem::take(&mut state.last.done) {
            reading.done.entry(queue).or_insert(done);
        }
        state.last = reading;
    }

    pub(crate) fn last_reading(&self) -> Option<Instant> {
        lock(&self.state).last_read_at
    }

    pub(crate) fn past(
        &self,
        queue: Option<&QueueName>,
        window: PastWindow,
        now: Timestamp,
    ) -> Past {
        let state = lock(&self.state);
        let ring = match window {
            PastWindow::Hour => &state.hour,
            PastWindow::Day => &state.day,
        };
        let (from, slots) = ring.view(queue, now.as_millis());
        let step = Duration::from_millis(ring.slot_length.unsigned_abs());
        Past { since: state.since, step, from, slots }
    }
}

#[cfg(test)]
mod tests {
    use dq_core::{Announced, RegisteredRunner};
    use serde_json::json;

    use super::*;

    /// 10:00 UTC of some day, in milliseconds.
    const TEN: i64 = 1_700_042_400_000;

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).unwrap()
    }

    fn stats(name: &str, done: u64, skipped: u64) -> QueueStats {
        let mut stats = QueueStats::empty(queue(name));
        let mut totals = dq_core::Totals::default();
        (totals.done, totals.skipped) = (done, skipped);
        stats.totals = Some(totals);
        stats
    }

    fn runner(name: &str, started: i64, failed: u64) -> RegisteredRunner {
        let info = json!({
            "format": 1, "host": "", "pid": 1, "version": "", "started": started,
            "stopping": false, "concurrency": 1, "running": 0, "skew_ms": 0, "omitted_queues": 0,
            "queues": [{
                "queue": "A", "concurrency": 1, "running": 0, "lateness": [], "run_time": [],
                "failed": failed,
            }],
        });
        let at = Timestamp::from_millis(TEN);
        Announced::new(name.to_owned(), info.to_string().into(), at, at).into()
    }

    fn record(watch: &Watch, at: i64, stats: &[QueueStats], runners: &[RegisteredRunner]) {
        watch.record(Timestamp::from_millis(at), stats, runners, []);
    }

    /// Watched slots as (minutes ago, done, failed).
    fn hour(watch: &Watch, queue: Option<&QueueName>, now: i64) -> Vec<(usize, f64, f64)> {
        let (_, slots) = lock(&watch.state).hour.view(queue, now);
        assert_eq!(slots.len(), 60);
        let slots = slots.iter().rev().enumerate();
        slots.filter_map(|(ago, slot)| slot.map(|slot| (ago, slot.done, slot.failed))).collect()
    }

    #[test]
    fn what_happens_between_two_readings_is_in_the_minutes_between_them() {
        let watch = Watch::default();
        record(&watch, TEN, &[stats("A", 1_000, 0)], &[]);
        assert_eq!(hour(&watch, None, TEN), []);
        record(&watch, TEN + 90_000, &[stats("A", 1_020, 10), stats("B", 3, 0)], &[]);
        assert_eq!(hour(&watch, None, TEN + 90_000), [(0, 11.0, 0.0), (1, 22.0, 0.0)]);
        let b = queue("B");
        assert_eq!(hour(&watch, Some(&b), TEN + 90_000), [(0, 1.0, 0.0), (1, 2.0, 0.0)]);
        // An hour later only the day still has it.
        record(&watch, TEN + 120_000, &[stats("A", 1_020, 10), stats("B", 3, 0)], &[]);
        assert_eq!(hour(&watch, None, TEN + 62 * 60_000), []);
        let (_, day) = lock(&watch.state).day.view(None, TEN + 62 * 60_000);
        let seen: Vec<_> = day.iter().flatten().map(|slot| (slot.done, slot.watched)).collect();
        assert_eq!(seen, [(33.0, Duration::from_secs(120))]);
    }

    #[test]
    fn a_time_without_readings_is_a_gap_and_a_reading_that_comes_late_is_left_out() {
        let watch = Watch::default();
        record(&watch, TEN, &[stats("A", 0, 0)], &[]);
        record(&watch, TEN + 60_000, &[stats("A", 6, 0)], &[]);
        record(&watch, TEN + MAX_READING_GAP + 60_001, &[stats("A", 900, 0)], &[]);
        record(&watch, TEN + MAX_READING_GAP + 120_001, &[stats("A", 912, 0)], &[]);
        record(&watch, TEN + MAX_READING_GAP + 60_000, &[stats("A", 800, 0)], &[]);
        let seen = hour(&watch, None, TEN + MAX_READING_GAP + 120_001);
        let minutes: Vec<_> = seen.iter().map(|(ago, ..)| *ago).collect();
        // Minutes 2 to 6 ago are missing.
        assert_eq!(minutes, [0, 1, 7], "{seen:?}");
        let sum: f64 = seen.iter().map(|(_, done, _)| done).sum();
        assert!((sum - 18.0).abs() < 1e-9, "{seen:?}");
    }

    #[test]
    fn totals_that_begin_again_count_nothing() {
        let watch = Watch::default();
        record(&watch, TEN, &[stats("A", 500, 0)], &[]);
        record(&watch, TEN + 60_000, &[stats("A", 4, 0)], &[]);
        record(&watch, TEN + 120_000, &[stats("A", 9, 0)], &[]);
        let now = TEN + 120_000;
        assert_eq!(hour(&watch, None, now), [(1, 5.0, 0.0), (2, 0.0, 0.0)]);
    }

    #[test]
    fn failures_are_those_of_the_runners_since_the_reading_before() {
        let watch = Watch::default();
        let long_ago = TEN - 86_400_000;
        record(&watch, TEN, &[], &[runner("one", long_ago, 700)]);
        // A runner started since then adds all its failures; one that was away adds none.
        let new = runner("new", TEN + 30_000, 4);
        let back = runner("back", long_ago, 9_000);
        record(&watch, TEN + 60_000, &[], &[runner("one", long_ago, 703), new, back]);
        assert_eq!(hour(&watch, None, TEN + 60_000), [(1, 0.0, 7.0)]);
        // A runner that leaves subtracts nothing, even if another one takes its name.
        let again = runner("new", TEN + 90_000, 1);
        record(&watch, TEN + 120_000, &[], &[runner("back", long_ago, 9_002), again]);
        assert_eq!(hour(&watch, None, TEN + 120_000), [(1, 0.0, 3.0), (2, 0.0, 7.0)]);
    }

    #[test]
    fn a_slot_holds_a_bounded_number_of_queues_and_the_total_has_all() {
        let watch = Watch::default();
        let all = |done| -> Vec<_> {
            (0..=MAX_QUEUES).map(|number| stats(&format!("Q{number}"), done, 0)).collect()
        };
        record(&watch, TEN, &all(0), &[]);
        record(&watch, TEN + 60_000, &all(1), &[]);
        let sum: f64 = hour(&watch, None, TEN).iter().map(|(_, done, _)| done).sum();
        assert!((sum - 1_001.0).abs() < 1e-9, "{sum}");
        assert_eq!(lock(&watch.state).hour.slots[0].queues.len(), MAX_QUEUES);
    }
}
