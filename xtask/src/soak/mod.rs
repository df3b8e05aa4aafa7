//! `cargo xtask soak`: processes share a store under steady load without faults. Their resource
//! use, and the store's, must not grow.

mod flat;
mod sample;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use flat::Series;
use sample::JOBS;

use crate::crew::{Crew, Program, SOAK};
use crate::faults::{Server, build_client};
use crate::options::{self, Options};
use crate::run::{Result, in_lanes, new_run_dir, target_dir};

const STEADY: usize = 2;
/// Samples per run, at least a second apart.
const SAMPLES: u32 = 600;
/// How often the third process is killed and replaced, at most once per sample. It must leave
/// nothing behind.
const REPLACED: Duration = Duration::from_secs(20);

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_secs(60);
/// A defect has this many times the length to show itself: a busy machine does less.
const PATIENCE: u32 = 5;
/// Deliberate defects, each with the series that grows.
const DEFECTS: [(&str, &str); 2] =
    [("leaks-memory", sample::PROCESS_MEMORY), ("leaves-jobs", JOBS)];

#[derive(Debug)]
struct Soak {
    store: String,
    length: Duration,
    defect: Option<String>,
}

impl Soak {
    /// Whether there is a defect whose series does not grow yet.
    fn waits_for_growth(&self, all: &[Series]) -> bool {
        let defect = DEFECTS.iter().find(|(name, _)| self.defect.as_deref() == Some(*name));
        defect.is_some_and(|(_, grows)| {
            let mut series = all.iter().filter(|series| series.name == *grows);
            !series.any(|series| series.halves().is_some() && !series.is_flat())
        })
    }
}

pub(crate) fn soak(arguments: &[&str]) -> Result {
    if arguments == ["--short"] {
        return selection();
    }
    let Options { store, seed, length, defect } =
        options::parse(arguments, &Server::STORES, &DEFECTS.map(|(name, _)| name))?;
    if seed.is_some() {
        return Err("a soak has no seed".to_owned());
    }
    let soak = Soak { store, length: length.unwrap_or(LONG), defect };
    Server::install(&soak.store)?;
    build_client()?;
    sound(&soak)
}

/// CI's runs, at once: a minute on a store, and one for each defect, which must be found.
pub(crate) fn selection() -> Result {
    let soak = |defect: Option<&str>| Soak {
        store: "sqlite".to_owned(),
        length: SHORT,
        defect: defect.map(str::to_owned),
    };
    build_client()?;
    let grows = AtomicBool::new(false);
    let tasks = [None].into_iter().chain(DEFECTS.map(Some)).collect::<Vec<_>>();
    in_lanes(tasks.len(), &tasks, |task| match task {
        None => {
            if let Err(growth) = sound(&soak(None)) {
                println!("   {growth}; once more, alone");
                grows.store(true, Ordering::SeqCst);
            }
            Ok(())
        }
        Some((defect, _)) => defective(&soak(Some(defect))),
    })?;
    // A machine that is too busy accumulates late jobs, which looks like growth.
    if grows.into_inner() { sound(&soak(None)) } else { Ok(()) }
}

/// Runs without a defect: no series may grow.
fn sound(soak: &Soak) -> Result {
    println!("── soak of {}, {} s", soak.store, soak.length.as_secs());
    let all = sampled(soak)?;
    print!("{}", table(&all));
    let growing = all.iter().filter(|series| !series.is_flat());
    let growing: Vec<_> = growing.map(|series| series.name).collect();
    if !growing.is_empty() {
        let names = growing.join(", ");
        return Err(format!("soak of {}: not flat, or too few samples: {names}", soak.store));
    }
    println!("── soak of {}: ok\n", soak.store);
    Ok(())
}

/// Runs with a defect: its series must grow.
fn defective(soak: &Soak) -> Result {
    let all = sampled(soak)?;
    let defect = soak.defect.as_deref().unwrap_or_default();
    if soak.waits_for_growth(&all) {
        return Err(format!("the defect {defect} was not found:\n{}", table(&all)));
    }
    println!("   {}, {defect}: found, as it should be", soak.store);
    Ok(())
}

/// Makes the directories of a run and removes them afterwards.
fn sampled(soak: &Soak) -> Result<Vec<Series>> {
    let defect = soak.defect.as_deref().unwrap_or("sound");
    let dir = new_run_dir("soak", &format!("{}-{defect}", soak.store))?;
    let store = dir.join("store");
    fs::create_dir_all(&store).map_err(|error| format!("{}: {error}", store.display()))?;
    let all = load(soak, &dir, &store);
    fs::remove_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    all
}

fn load(soak: &Soak, dir: &Path, store: &Path) -> Result<Vec<Series>> {
    let path = target_dir().join("debug/dq-faults-client");
    let history = ("DQ_FAULTS_HISTORY", "1".to_owned());
    let mut steady = Program { name: "steady", path, environment: vec![history] };
    if let Some(defect) = &soak.defect {
        steady.environment.push(("DQ_FAULTS_DEFECT", defect.clone()));
    }
    let replaced = Program { name: "replaced", ..steady.clone() };
    let server = Server::start(&soak.store, store);
    let url = match &server {
        // The smallest log: several generations must fit into a run.
        Server::RabbitMq(rabbit) => format!("{}?log_size_mib=16", rabbit.url()),
        server => server.url(),
    };
    let mut crew = Crew::new(vec![url], dir, "log");
    for _process in 0..STEADY {
        crew.start(&steady, SOAK)?;
    }
    crew.start(&replaced, SOAK)?;

    let mut all: Vec<Series> = Vec::new();
    let pause = (soak.length / SAMPLES).max(Duration::from_secs(1));
    let begin = Instant::now();
    let mut replaced_at = begin;
    while begin.elapsed() < soak.length
        || (begin.elapsed() < soak.length * PATIENCE && soak.waits_for_growth(&all))
    {
        thread::sleep(pause);
        if replaced_at.elapsed() >= REPLACED {
            crew.kill_oldest(&replaced);
            crew.start(&replaced, SOAK)?;
            replaced_at = Instant::now();
        }
        let new = sample::sample(&server, &crew.processes(&steady))?;
        new.into_iter().for_each(|series| Series::add(&mut all, series));
    }

    crew.stop_all(&steady);
    crew.stop_all(&replaced);
    let mut failures = crew.finish().failures;
    // A load that does nothing is flat too.
    let jobs = all.iter().find(|series| series.name == JOBS);
    if !jobs.is_some_and(|jobs| jobs.samples.iter().any(|count| *count > 0.0)) {
        failures.push("no process has counted jobs".to_owned());
    }
    if failures.is_empty() { Ok(all) } else { Err(failures.join("\n")) }
}

fn table(all: &[Series]) -> String {
    let mut text = "| | First half | Second half | |\n|---|---|---|---|\n".to_owned();
    for series in all {
        let Series { name, unit, .. } = series;
        let Some(halves) = series.halves() else {
            text += &format!("| {name} | | | {} samples |\n", series.samples.len());
            continue;
        };
        let (first, second) = (halves.first, halves.second);
        let flat = if series.is_flat() { "flat" } else { "**grows**" };
        let digits = usize::from(!unit.is_empty());
        let line =
            format!("| {name} | {first:.digits$} {unit} | {second:.digits$} {unit} | {flat} |");
        text += &line.replace("  |", " |");
        text.push('\n');
    }
    text
}
