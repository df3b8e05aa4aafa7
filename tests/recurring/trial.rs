//! The trial on one store: starts processes, kills them at random, and checks which handler starts
//! they have written down.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant, SystemTime};

use dq::prelude::*;
use libtest_mimic::Failed;

use crate::process::{Options, tick};

const PROCESSES: usize = 4;

/// How long one round kills processes before they may catch up.
const ROUND: Duration = Duration::from_secs(4);

/// On RabbitMQ, a new process first waits some seconds for the killed one's leases; the rest allows
/// for a busy machine.
const CATCH_UP: Duration = Duration::from_secs(90);

/// A store. Dropping it stops its own server; a shared server stays.
pub(crate) struct Store {
    pub(crate) url: String,
    pub(crate) _guard: Box<dyn Any>,
}

impl From<String> for Store {
    fn from(url: String) -> Self {
        Self { url, _guard: Box::new(()) }
    }
}

/// Running processes. Dropping them kills them.
struct Processes {
    options: Options,
    children: Vec<Child>,
    /// The state of a pseudorandom number generator (xorshift).
    random: u64,
    kills: u32,
}

impl Processes {
    fn start(options: Options) -> Self {
        let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let children = (0..PROCESSES).map(|_| options.spawn()).collect();
        Self { options, children, random: seed.as_nanos() as u64 | 1, kills: 0 }
    }

    /// Waits 50 to 350 ms, kills a random process and starts another one.
    fn kill_one(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        std::thread::sleep(Duration::from_millis(50 + self.random % 300));
        let index = (self.random >> 32) as usize % PROCESSES;
        kill(&mut self.children[index]);
        self.children[index] = self.options.spawn();
        self.kills += 1;
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.children.iter_mut().for_each(kill);
    }
}

fn kill(child: &mut Child) {
    child.kill().expect("the process is a child of this one");
    child.wait().expect("the process has ended");
}

/// Job id and delivery number.
type Start = (String, u32);

/// The starts of each occurrence, by its time in milliseconds.
fn starts(log: &Path) -> BTreeMap<i64, Vec<Start>> {
    let mut starts: BTreeMap<i64, Vec<Start>> = BTreeMap::new();
    for line in std::fs::read_to_string(log).unwrap_or_default().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [occurrence, job, delivery] = words[..] else { panic!("an incomplete line: {line}") };
        let start = (job.to_owned(), delivery.parse().expect("a number"));
        starts.entry(occurrence.parse().expect("a time")).or_default().push(start);
    }
    starts
}

fn now() -> i64 {
    Timestamp::from(SystemTime::now()).as_millis()
}

pub(crate) fn run(store: Store) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let log = directory.path().join("starts");
    let rounds = std::env::var("DQ_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let mut processes = Processes::start(Options::new(&store.url, log.clone()));
    // The first process to start stores the schedule.
    wait_for_occurrence(&log, 0)?;
    for _ in 0..rounds.unwrap_or(4) {
        let end = Instant::now() + ROUND;
        while Instant::now() < end {
            processes.kill_one();
        }
        wait_for_occurrence(&log, now())?;
    }
    let until = now();
    wait_for_occurrence(&log, until)?;
    let kills = processes.kills;
    let ended = end_schedule(&store.url)?;
    drop(processes);
    let starts = starts(&log);
    check(&starts, until).map_err(|why| format!("after {kills} kills: {why}"))?;
    let jobs = starts.len() as u64;
    // The totals cover the queue's whole life; the queue is new.
    if let Some(done) = ended
        && done != jobs
    {
        return Err(format!("{jobs} occurrences were {done} jobs, after {kills} kills").into());
    }
    println!("{jobs} occurrences, {kills} kills");
    Ok(())
}

/// Waits until a handler has started for an occurrence after a time.
fn wait_for_occurrence(log: &Path, after: i64) -> Result<(), Failed> {
    let end = Instant::now() + CATCH_UP;
    loop {
        let last = starts(log).last_key_value().map(|(time, _)| *time);
        match last {
            Some(last) if last > after => return Ok(()),
            _ if Instant::now() >= end => {
                return Err(format!("no occurrence after {after}; the last is {last:?}").into());
            }
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Removes the schedule and waits until all its jobs have ended. Returns how many were done, if the
/// store counts them.
#[tokio::main(flavor = "current_thread")]
async fn end_schedule(url: &str) -> dq::Result<Option<u64>> {
    // Longer than any call takes on a busy machine.
    let timeout = match url.starts_with("sqlite:") {
        true => "?busy_timeout=60s",
        false => "?response_timeout=60s",
    };
    let dq = Dq::connect(&format!("{url}{timeout}")).await?;
    assert!(dq.recurring::<tick>("TICK").remove().await?, "the schedule exists");
    let queue = dq.queue_of::<tick>()?;
    let end = Instant::now() + CATCH_UP;
    loop {
        let stats = queue.stats().await?;
        if stats.stored() == 0 || Instant::now() >= end {
            assert_eq!(stats.stored(), 0, "all jobs end: {stats:?}");
            dq.close().await?;
            return Ok(stats.totals.map(|totals| totals.done));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Each second from the first occurrence to `until` must be one job.
fn check(starts: &BTreeMap<i64, Vec<Start>>, until: i64) -> Result<(), String> {
    let (first, _) = starts.first_key_value().ok_or("nothing has run")?;
    for time in (*first..until).step_by(1_000) {
        if !starts.contains_key(&time) {
            return Err(format!("the occurrence {time} did not run"));
        }
    }
    for (time, starts) in starts {
        let is_one_job = starts.iter().all(|(job, _)| *job == starts[0].0);
        // A job killed before its settlement is delivered again, with a higher number. A second
        // job with the same id begins at delivery 1. Lines may be out of order, because a process
        // may wait for the processor before it writes.
        let deliveries: BTreeSet<_> = starts.iter().map(|(_, delivery)| *delivery).collect();
        let is_one_life = deliveries.len() == starts.len();
        if time % 1_000 != 0 || !is_one_job || !is_one_life {
            return Err(format!("the occurrence {time} ran as {starts:?}"));
        }
    }
    Ok(())
}
