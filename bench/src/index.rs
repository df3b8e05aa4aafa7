//! The memory backend's due index, compared to `tokio_util`'s `DelayQueue` and a bare `BinaryHeap`.
//!
//! Due times are random within seven days. A random fifth of the jobs is cancelled; the rest is
//! removed in 1,000 time steps. All times are the one thread's CPU time, read every 64 operations.
//! The slowest such block bounds the slowest single operation from above.

mod candidate;
mod rivals;

use std::time::Duration;

use dq::backend::machine::index::{Arena, DueIndex, HashIndex, Slot, TimeEntry};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use self::candidate::Index;
use self::rivals::{Heap, TokioQueue, paused};
use crate::measure::{median, micros, millis, thread_cpu};
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;
use crate::workload::{WEEK, scatter};

/// Operations between two clock readings.
const BLOCK: usize = 64;

const STEPS: i64 = 1_000;

pub(crate) fn run(plan: &Plan) -> Result<Vec<Figure>> {
    let sizes: &[(usize, usize)] =
        plan.full_or_quick(&[(10_000, 21), (1_000_000, 3), (10_000_000, 1)], &[(10_000, 2)]);
    let mut figures = Vec::new();
    for &(jobs, rounds) in sizes {
        figures.extend(compare(jobs, rounds)?);
    }
    Ok(figures)
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
        self.waiting.remove(at, seq);
        self.keys.remove(&key, slot);
        self.records.remove(slot);
    }

    fn pop(&mut self, now: i64) -> bool {
        let Some(entry) = self.waiting.pop(now) else { return false };
        if let Some(record) = self.records.remove(entry.slot) {
            self.keys.remove(&record.key, entry.slot);
        }
        true
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

struct Script {
    due: Vec<i64>,
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
            let mut more = true;
            while more {
                let start = thread_cpu();
                for _ in 0..BLOCK {
                    more = index.pop(now);
                    if !more {
                        break;
                    }
                    popped += 1;
                }
                let took = thread_cpu() - start;
                spent += took;
                worst = worst.max(took);
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

/// Measures the three structures in turns, so that a slow phase of the machine affects each.
fn compare(jobs: usize, rounds: usize) -> Result<Vec<Figure>> {
    let runtime = paused();
    // Entered once: entering per operation adds to the DelayQueue's time.
    let _entered = runtime.enter();
    let mut costs: [Vec<Cost>; 3] = Default::default();
    for round in 0..rounds {
        let script = Script::new(jobs, round as u64);
        costs[0].push(script.run(&mut Keyed::default())?);
        costs[1].push(script.run(&mut TokioQueue::new(&runtime))?);
        costs[2].push(script.run(&mut Heap::default())?);
        if rounds < 10 || round + 1 == rounds {
            let life_cycles = costs.each_ref().map(|costs| costs[round].life_cycle());
            progress(format_args!(
                "{jobs} jobs, round {} of {rounds}: a life-cycle takes {:.0} ns; DelayQueue {:.0}, \
                 BinaryHeap {:.0}",
                round + 1,
                life_cycles[0],
                life_cycles[1],
                life_cycles[2]
            ));
        }
    }
    let median_of =
        |costs: &[Cost], value: fn(&Cost) -> f64| median(costs.iter().map(value).collect());
    let [keyed, delay_queue, heap] = &costs;
    let reference = median_of(delay_queue, Cost::life_cycle);
    let size = match jobs {
        1_000_000.. => format!("{}M", jobs / 1_000_000),
        _ => format!("{}k", jobs / 1_000),
    };
    let mut figures = Vec::new();
    for (name, costs) in [("keyed", keyed), ("DelayQueue", delay_queue), ("BinaryHeap", heap)] {
        let named = |what: &str| format!("{size}, {name}: {what}");
        figures.extend([
            Figure::new(named("insert"), median_of(costs, |cost| cost.insert), "ns"),
            Figure::new(named("cancel"), median_of(costs, |cost| cost.cancel), "ns"),
            Figure::new(named("pop"), median_of(costs, |cost| cost.pop), "ns"),
        ]);
        let life = Figure::new(named("life-cycle"), median_of(costs, Cost::life_cycle), "ns")
            .compared_to(reference, "DelayQueue");
        let worst = median_of(costs, |cost| millis(cost.worst));
        let worst = Figure::new(named("worst step"), worst, "ms");
        if name == "keyed" {
            figures.extend([life.ratio_at_most(1.0), worst.at_most(10.0)]);
        } else {
            figures.extend([life, worst]);
        }
    }
    figures.push(browse(jobs, &size));
    Ok(figures)
}

fn browse(jobs: usize, size: &str) -> Figure {
    let script = Script::new(jobs, 0);
    let mut index = Keyed::default();
    for (number, due) in (0..).zip(&script.due) {
        index.insert(number, *due);
    }
    let mut rng = SmallRng::seed_from_u64(1);
    let pages = (0..1_001).map(|_| {
        let from = rng.random_range(0..WEEK);
        let start = thread_cpu();
        let read = index.waiting.after(from, 0).take(50).map(|entry| entry.seq).max();
        let took = micros(thread_cpu() - start);
        std::hint::black_box(read);
        took
    });
    Figure::new(format!("{size}, keyed: page of 50 in due order"), median(pages.collect()), "µs")
}
