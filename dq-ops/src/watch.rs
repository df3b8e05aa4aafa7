//! Records the last hour and day of each queue, as this process observed them.
//!
//! Stores keep no past. Each overview already reads lifetime totals and runner announcements, so
//! two readings show the jobs done between them.

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

impl PastSlot {
    fn has_counts(&self) -> bool {
        self.done > 0.0 || self.failed > 0.0 || self.late_p99_ms.is_some()
    }

    /// Adds this share of a change's counts, and its whole p99.
    fn add(&mut self, change: &Self, share: f64) {
        self.done += change.done * share;
        self.failed += change.failed * share;
        self.late_p99_ms = self.late_p99_ms.max(change.late_p99_ms);
    }
}

#[derive(Debug)]
struct Slot {
    /// Slots from 1970 to this one.
    number: i64,
    total: PastSlot,
    /// The queues' counts. Only the total has the watched time.
    queues: HashMap<QueueName, PastSlot>,
}

#[derive(Debug)]
struct Ring {
    /// The length of a slot in milliseconds.
    slot_length: i64,
    slot_count: i64,
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

    /// Spreads the changes evenly over the slots between two times, in Unix milliseconds.
    fn add(&mut self, from: i64, to: i64, total: &PastSlot, queues: &HashMap<QueueName, PastSlot>) {
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
                self.slots.push_back(Slot { number, total, queues });
            }
            let Some(slot) = self.slots.back_mut() else { continue };
            slot.total.watched += Duration::from_millis((end - begin).unsigned_abs());
            slot.total.add(total, share);
            for (queue, change) in queues {
                if slot.queues.len() < MAX_QUEUES || slot.queues.contains_key(queue) {
                    slot.queues.entry(queue.clone()).or_default().add(change, share);
                }
            }
        }
        while self.slots.front().is_some_and(|slot| slot.number <= last - self.slot_count) {
            self.slots.pop_front();
        }
    }

    fn view(&self, queue: Option<&QueueName>, now: i64) -> (Timestamp, Vec<Option<PastSlot>>) {
        let first = now.div_euclid(self.slot_length) - self.slot_count + 1;
        let slot_at = |number: i64| {
            let slot = self.slots.iter().find(|slot| slot.number == number)?;
            let counts = match queue {
                None => slot.total,
                Some(queue) => slot.queues.get(queue).copied().unwrap_or_default(),
            };
            Some(PastSlot { watched: slot.total.watched, ..counts })
        };
        let slots = (first..first + self.slot_count).map(slot_at).collect();
        (Timestamp::from_millis(first * self.slot_length), slots)
    }
}

/// Counts read by an overview, which only grow.
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

    fn since(&self, earlier: &Self) -> HashMap<QueueName, PastSlot> {
        let mut changes: HashMap<QueueName, PastSlot> = HashMap::new();
        for (queue, done) in &self.done {
            // A new queue starts at zero.
            let before = earlier.done.get(queue).copied().unwrap_or(0);
            changes.entry(queue.clone()).or_default().done = done.saturating_sub(before) as f64;
        }
        for (runner, queues) in &self.failed {
            let (_, started) = runner;
            let known = earlier.failed.get(runner);
            let is_new = known.is_none() && *started >= earlier.at;
            for (queue, failed) in queues {
                let before = known.and_then(|queues| queues.get(queue).copied());
                // Without an earlier count, nobody knows when these runs failed: the runner was
                // away, or did not announce the queue.
                let Some(before) = before.or(is_new.then_some(0)) else { continue };
                let failed = failed.saturating_sub(before) as f64;
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
            changes.retain(|queue, change| !queue.is_reserved() && change.has_counts());
            let mut total = PastSlot::default();
            changes.values().for_each(|change| total.add(change, 1.0));
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

    const MINUTE: i64 = 60_000;

    fn stats(name: &str, done: u64) -> QueueStats {
        let mut stats = QueueStats::empty(QueueName::new(name).unwrap());
        let mut totals = dq_core::Totals::default();
        totals.done = done;
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

    /// Returns the last hour's watched slots as (minutes ago, done, failed).
    fn hour(watch: &Watch, queue: Option<&str>, now: i64) -> Vec<(usize, f64, f64)> {
        let queue = queue.map(|name| QueueName::new(name).unwrap());
        let past = watch.past(queue.as_ref(), PastWindow::Hour, Timestamp::from_millis(now));
        assert_eq!(past.slots.len(), 60);
        let slots = past.slots.iter().rev().enumerate();
        slots.filter_map(|(ago, slot)| slot.map(|slot| (ago, slot.done, slot.failed))).collect()
    }

    #[test]
    fn what_happens_between_two_readings_is_in_the_minutes_between_them() {
        let watch = Watch::default();
        record(&watch, TEN, &[stats("A", 1_000)], &[]);
        assert_eq!(hour(&watch, None, TEN), []);
        let now = TEN + 90_000;
        record(&watch, now, &[stats("A", 1_030), stats("B", 3)], &[]);
        assert_eq!(hour(&watch, None, now), [(0, 11.0, 0.0), (1, 22.0, 0.0)]);
        assert_eq!(hour(&watch, Some("B"), now), [(0, 1.0, 0.0), (1, 2.0, 0.0)]);
        // An hour later only the day still has it.
        let later = TEN + 62 * MINUTE;
        assert_eq!(hour(&watch, None, later), []);
        let day = watch.past(None, PastWindow::Day, Timestamp::from_millis(later)).slots;
        let seen: Vec<_> = day.iter().flatten().map(|slot| (slot.done, slot.watched)).collect();
        assert_eq!(seen, [(33.0, Duration::from_secs(90))]);
    }

    #[test]
    fn a_time_without_readings_is_a_gap_and_a_late_or_smaller_reading_counts_nothing() {
        let watch = Watch::default();
        let after_gap = TEN + MINUTE + MAX_READING_GAP + 1;
        for (at, done) in [
            (TEN, 0),
            (TEN + MINUTE, 6),
            (after_gap, 900),
            (after_gap + MINUTE, 912),
            (after_gap + MINUTE - 1, 800),
            (after_gap + 2 * MINUTE, 0),
            (after_gap + 3 * MINUTE, 0),
        ] {
            record(&watch, at, &[stats("A", done)], &[]);
        }
        let seen = hour(&watch, None, after_gap + 3 * MINUTE);
        let minutes: Vec<_> = seen.iter().map(|(ago, ..)| *ago).collect();
        // Minutes 4 to 8 ago are missing.
        assert_eq!(minutes, [0, 1, 2, 3, 9], "{seen:?}");
        let sum: f64 = seen.iter().map(|(_, done, _)| done).sum();
        assert!((sum - 18.0).abs() < 1e-9, "{seen:?}");
    }

    #[test]
    fn failures_are_those_of_the_runners_since_the_reading_before() {
        let watch = Watch::default();
        let long_ago = TEN - 86_400_000;
        record(&watch, TEN, &[], &[runner("one", long_ago, 700)]);
        // A runner started since then adds all its failures; one that was away adds none.
        let new = runner("new", TEN + 30_000, 4);
        let back = runner("back", long_ago, 9_000);
        record(&watch, TEN + MINUTE, &[], &[runner("one", long_ago, 703), new, back]);
        assert_eq!(hour(&watch, None, TEN + MINUTE), [(1, 0.0, 7.0)]);
        // A runner that leaves subtracts nothing, even if another one takes its name.
        let again = runner("new", TEN + 90_000, 1);
        record(&watch, TEN + 2 * MINUTE, &[], &[runner("back", long_ago, 9_002), again]);
        assert_eq!(hour(&watch, None, TEN + 2 * MINUTE), [(1, 0.0, 3.0), (2, 0.0, 7.0)]);
    }

    #[test]
    fn a_slot_holds_a_bounded_number_of_queues_and_the_total_has_all() {
        let watch = Watch::default();
        for (at, done) in [(TEN, 0), (TEN + MINUTE, 1)] {
            let all: Vec<_> =
                (0..=MAX_QUEUES).map(|number| stats(&format!("Q{number}"), done)).collect();
            record(&watch, at, &all, &[]);
        }
        let sum: f64 = hour(&watch, None, TEN).iter().map(|(_, done, _)| done).sum();
        assert!((sum - 1_001.0).abs() < 1e-9, "{sum}");
        assert_eq!(lock(&watch.state).hour.slots[0].queues.len(), MAX_QUEUES);
    }
}
