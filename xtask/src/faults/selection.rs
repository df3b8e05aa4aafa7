//! CI's selection: a short storm on each store, which must keep the promises, and storms over
//! deliberate defects, which must break them.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::defect::{DEFECTS, Defect};
use super::run::{Length, Run, Verdict, build};
use super::server::Server;
use crate::run::Result;

const STORMS: [(&str, u64); 5] =
    [("rabbitmq", 2), ("redis-expiry", 1), ("redisson", 3), ("redis", 4), ("sqlite", 6)];

/// A busy machine may not show a defect within seconds; then a longer storm follows.
const DEFECT_LENGTHS: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(40)];

/// Concurrent runs; they mostly wait.
const LANES: usize = 3;

/// Builds the client and runs all storms, even after one has failed.
pub(crate) fn selection() -> Result {
    STORMS.iter().try_for_each(|(store, _)| Server::install(store))?;
    build()?;
    println!("── storms");
    let start = Instant::now();
    let storms = STORMS.map(|(store, seed)| {
        Box::new(move || sound(&Run::new(store, seed, Length::EachFaultOnce))) as Task
    });
    let defects = DEFECTS.map(|defect| Box::new(move || defective(defect)) as Task);
    // The longest first.
    let tasks = Mutex::new(storms.into_iter().chain(defects));
    let failures = Mutex::new(Vec::new());
    let lane = || {
        loop {
            let next = tasks.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(task) = next else { break };
            if let Err(failure) = task() {
                failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
            }
        }
    };
    let panicked = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        // Awaits all lanes. A lane panics if its server fails to start.
        lanes.into_iter().filter_map(|lane| lane.join().err()).count()
    });
    let mut failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    if panicked > 0 {
        failures.push("a server has failed; the message is above".to_owned());
    }
    if !failures.is_empty() {
        return Err(format!("storms failed:\n{}", failures.join("\n")));
    }
    println!("── storms: ok, {:.1} s\n", start.elapsed().as_secs_f64());
    Ok(())
}

/// A run with its expectation; the error says how it was missed.
type Task = Box<dyn FnOnce() -> Result + Send>;

fn sound(run: &Run) -> Result {
    let report = run.execute()?;
    match report.verdict {
        Verdict::Kept => {
            println!("   {run}: ok\n{}", report.text.trim_end());
            Ok(())
        }
        Verdict::Violated => Err(format!("{run}:\n{}", report.text)),
    }
}

fn defective(defect: Defect) -> Result {
    let Defect { name, finding } = defect;
    let mut seen = String::new();
    for length in DEFECT_LENGTHS {
        let run = Run { defect: Some(defect), ..Run::new("sqlite", 1, Length::Time(length)) };
        let report = match run.execute() {
            Ok(report) => report,
            Err(error) => {
                seen = error;
                continue;
            }
        };
        if report.verdict == Verdict::Violated && report.text.contains(finding) {
            println!("   {run}: found, as it should be: {finding}…");
            return Ok(());
        }
        seen = report.text;
    }
    Err(format!("the defect {name} was not found: no {finding:?} in\n{seen}"))
}
