//! The memory backend's due index, compared to `tokio_util`'s `DelayQueue`.
//!
//! Due times are random within seven days. A random fifth of the jobs is cancelled; the rest is
//! removed in 1,000 time steps. All times are the one thread's CPU time, read every 64 operations.
//! The slowest such block bounds the slowest single operation from above.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dq::backend::machine::index::{Arena, DueIndex, HashIndex, Slot, TimeEntry};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

use crate::measure::{Plan, Result, median, micros, millis, progress, thread_cpu};
use crate::store::Store;
use crate::table::{Figure, grouped};
use crate::workload::{WEEK, scatter};

const BLOCK: usize = 64;

const STEPS: i64 = 1_000;

/// A data structure for pending jobs. Job numbers start at 0 and arrive in order without gaps, so
/// they can serve as indexes. Times are milliseconds from 0.
trait Index {
    fn insert(&mut self, number: u32, at: i64);

    fn cancel(&mut self, number: u32);

    /// Advances the structure's own clock, if any, before each run of [`pop`](Self::pop) calls with
    /// the same time. Not measured.
    fn advance(&mut self, _now: i64) {}

    fn pop(&mut self, now: i64) -> bool;
}

/// The memory backend's structures, combined as in the backend: records with keys, a lookup by key
/// and the due-time index.
#[derive(Default)]
struct Keyed {
    records: Arena<Record>,
    keys: HashIndex,
    waiting: DueIndex,
    next_seq: u64,
}

struct Record {
    key: u64,
    at: i64,
    seq: u64,
}

impl Keyed {
    fn find(&self, key: u64) -> Option<Slot> {
        self.keys.find(&key, |slot| self.records[slot].key == key)
    }
}

impl Index for Keyed {
    fn insert(&mut self, number: u32, at: i64) {
        let key = scatter(number.into());
        if self.find(key).is_some() {
            return;
        }
        self.next_seq += 1;
        let seq = self.next_seq;
        let slot = self.records.insert(Record { key, at, seq });
        self.keys.insert(&key, slot);
        self.waiting.insert(TimeEntry { at, seq, slot });
    }

    fn cancel(&mut self, number: u32) {
        let key = scatter(number.into());
        let Some(slot) = self.find(key) else { return };
        let Record { at, seq, .. } = self.records[slot];
        self.waiting.remove((at, seq));
        self.keys.remove(&key, slot);
        self.records.remove(slot);
    }

    fn pop(&mut self, now: i64) -> bool {
        let Some(entry) = self.waiting.pop(now) else { return false };
        let record = self.records.remove(entry.slot);
        self.keys.remove(&record.key, entry.slot);
        true
    }
}

/// `tokio_util`'s timer wheel, which hands out handles instead of taking keys.
struct TokioQueue<'r> {
    queue: DelayQueue<u32>,
    handles: Vec<Key>,
    /// With a paused clock: only `tokio::time::advance` moves it.
    runtime: &'r Runtime,
    began: Instant,
    now: i64,
}

impl Index for TokioQueue<'_> {
    fn insert(&mut self, number: u32, at: i64) {
        let due = self.began + Duration::from_millis(at.unsigned_abs());
        self.handles.push(self.queue.insert_at(number, due));
    }

    fn cancel(&mut self, number: u32) {
        self.queue.remove(&self.handles[number as usize]);
    }

    fn advance(&mut self, now: i64) {
        let by = Duration::from_millis((now - self.now).unsigned_abs());
        self.now = now;
        self.runtime.block_on(tokio::time::advance(by));
    }

    fn pop(&mut self, _now: i64) -> bool {
        // Outside a task, tokio's cooperative budget does not cut polling short.
        let mut context = Context::from_waker(Waker::noop());
        matches!(self.queue.poll_expired(&mut context), Poll::Ready(Some(_)))
    }
}

/// Nanoseconds per operation, and the slowest block's time.
#[derive(Debug, Clone, Copy)]
struct Cost {
    insert: f64,
    cancel: f64,
    pop: f64,
    worst: Duration,
}

impl Cost {
    /// An average job's life: an insertion, then a cancellation (20 %) or a pop (80 %).
    fn life_cycle(&self) -> f64 {
        self.insert + 0.2 * self.cancel + 0.8 * self.pop
    }
}

/// The operations of a round, the same for both structures.
struct Script {
    /// Due times by job number.
    due: Vec<i64>,
    /// The numbers of the jobs to cancel.
    cancelled: Vec<u32>,
}

impl Script {
    fn new(jobs: usize, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let due = (0..jobs).map(|_| rng.random_range(0..WEEK)).collect();
        let mut numbers: Vec<u32> = (0..u32::try_from(jobs).expect("fewer than 2^32")).collect();
        let (cancelled, _) = numbers.partial_shuffle(&mut rng, jobs / 5);
        Self { due, cancelled: cancelled.to_vec() }
    }

    fn run(&self, index: &mut impl Index) -> Result<Cost> {
        let mut worst = Duration::ZERO;
        let mut number = 0;
        let insert = timed(&self.due, &mut worst, |due| {
            index.insert(number, *due);
            number += 1;
        });
        let cancel = timed(&self.cancelled, &mut worst, |number| index.cancel(*number));
        let mut popped = 0_usize;
        let mut spent = Duration::ZERO;
        for step in 1..=STEPS {
            let now = WEEK * step / STEPS;
            index.advance(now);
            loop {
                let start = thread_cpu();
                let in_block = (0..BLOCK).take_while(|_| index.pop(now)).count();
                let took = thread_cpu() - start;
                popped += in_block;
                spent += took;
                worst = worst.max(took);
                if in_block < BLOCK {
                    break;
                }
            }
        }
        let expected = self.due.len() - self.cancelled.len();
        if popped != expected {
            return Err(format!("{popped} of {expected} jobs were popped").into());
        }
        let pop = nanos_each(spent, popped);
        Ok(Cost { insert, cancel, pop, worst })
    }
}

/// Runs an operation on each item. Returns nanoseconds per item and raises `worst` to the slowest
/// block's time.
fn timed<T>(items: &[T], worst: &mut Duration, mut each: impl FnMut(&T)) -> f64 {
    let mut spent = Duration::ZERO;
    for block in items.chunks(BLOCK) {
        let start = thread_cpu();
        block.iter().for_each(&mut each);
        let took = thread_cpu() - start;
        spent += took;
        *worst = (*worst).max(took);
    }
    nanos_each(spent, items.len())
}

fn nanos_each(time: Duration, count: usize) -> f64 {
    micros(time) * 1e3 / count as f64
}

pub(crate) fn measure(plan: &Plan, _: &Store) -> Result<Vec<Figure>> {
    let sizes: &[(usize, usize)] =
        plan.full_or_quick(&[(10_000, 21), (1_000_000, 3), (10_000_000, 1)], &[(10_000, 2)]);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    // Entered once: entering per operation adds to the DelayQueue's time.
    let _entered = runtime.enter();
    let mut figures = Vec::new();
    for &(jobs, rounds) in sizes {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        // In turns, so that a slow phase of the machine affects both.
        for round in 0..rounds {
            let script = Script::new(jobs, round as u64);
            ours.push(script.run(&mut Keyed::default())?);
            let (queue, handles) = (DelayQueue::new(), Vec::new());
            let began = Instant::now();
            let mut rival = TokioQueue { queue, handles, runtime: &runtime, began, now: 0 };
            theirs.push(script.run(&mut rival)?);
            progress(format_args!("{jobs} jobs, round {} of {rounds}", round + 1));
        }
        let median_of =
            |costs: &[Cost], value: fn(&Cost) -> f64| median(costs.iter().map(value).collect());
        let worst = |cost: &Cost| millis(cost.worst);
        let named = |operation: &str| format!("{}, {operation}", grouped(jobs as f64));
        let reference = median_of(&theirs, Cost::life_cycle);
        figures.extend([
            Figure::new(named("insert"), median_of(&ours, |cost| cost.insert), "ns"),
            Figure::new(named("cancel"), median_of(&ours, |cost| cost.cancel), "ns"),
            Figure::new(named("pop"), median_of(&ours, |cost| cost.pop), "ns"),
            Figure::new(named("life-cycle"), median_of(&ours, Cost::life_cycle), "ns")
                .compared_to(reference, "DelayQueue")
                .ratio_at_most(1.0),
            Figure::new(named("worst step"), median_of(&ours, worst), "ms").at_most(10.0),
            Figure::new(named("worst step of DelayQueue"), median_of(&theirs, worst), "ms"),
        ]);
    }
    Ok(figures)
}
