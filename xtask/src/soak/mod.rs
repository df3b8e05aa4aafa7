//! `cargo xtask soak`: processes share a store under steady load without faults. Their resource
//! use, and the store's, must not grow.

mod flat;
mod sample;

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, thread};

use flat::Series;
use sample::JOBS;

use crate::crew::{Crew, Mode, Program};
use crate::faults::{Server, build_client};
use crate::run::{Result, built, root};

/// Processes with measured memory.
const STEADY: usize = 2;
/// Samples per run, at least a second apart.
const SAMPLES: u32 = 600;
/// How often the third process is killed and replaced, at most once per sample. It must leave
/// nothing behind.
const REPLACED: Duration = Duration::from_secs(20);

const SHORT: Duration = Duration::from_secs(60);
/// Deliberate defects, each with the series that grows.
const DEFECTS: [(&str, &str); 2] =
    [("leaks-memory", sample::PROCESS_MEMORY), ("leaves-jobs", JOBS)];

#[derive(Debug)]
struct Options {
    store: String,
    length: Duration,
    defect: Option<String>,
}

/// Parses `--backend X [--minutes N | --seconds N] [--defect NAME]`.
fn parse(arguments: &[&str]) -> Result<Options> {
    let number =
        |text: &str| text.parse::<u64>().map_err(|_| format!("soak: {text:?} is not a number"));
    let mut options =
        Options { store: String::new(), length: Duration::from_secs(600), defect: None };
    for pair in arguments.chunks(2) {
        match *pair {
            ["--backend", store] => options.store = store.to_owned(),
            ["--minutes", minutes] => options.length = Duration::from_secs(number(minutes)? * 60),
            ["--seconds", seconds] => options.length = Duration::from_secs(number(seconds)?),
            ["--defect", defect] => options.defect = Some(defect.to_owned()),
            _ => return Err(format!("soak: {} is unknown or has no value", pair[0])),
        }
    }
    if Server::STORES.contains(&options.store.as_str()) {
        Ok(options)
    } else {
        Err(format!("soak: --backend is one of {}", Server::STORES.join(", ")))
    }
}

/// Builds the client and does one run, or CI's runs with `--short`.
pub(crate) fn soak(arguments: &[&str]) -> Result {
    if arguments == ["--short"] {
        return selection();
    }
    let options = parse(arguments)?;
    Server::install(&options.store)?;
    build_client()?;
    println!("── soak of {}, {} s", options.store, options.length.as_secs());
    sound(&options)?;
    println!("── soak of {}: ok", options.store);
    Ok(())
}

/// CI's runs: a minute on a store, then one per defect, which must be found.
pub(crate) fn selection() -> Result {
    let run = |defect: Option<&str>| Options {
        store: "sqlite".to_owned(),
        length: SHORT,
        defect: defect.map(str::to_owned),
    };
    build_client()?;
    println!("── soak of sqlite, {} s", SHORT.as_secs());
    // Retried once: a machine busy with something else accumulates late jobs, which looks like
    // growth.
    sound(&run(None)).or_else(|failure| {
        println!("   {failure}; once more");
        sound(&run(None))
    })?;
    let results = thread::scope(|scope| {
        let runs = DEFECTS
            .map(|(defect, grows)| scope.spawn(move || defective(&run(Some(defect)), grows)));
        runs.map(|run| run.join().unwrap_or_else(|_| Err("a run has panicked".to_owned())))
    });
    let failures: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    if !failures.is_empty() {
        return Err(failures.join("\n"));
    }
    println!("── soak: ok\n");
    Ok(())
}

fn sound(options: &Options) -> Result {
    let all = sampled(options)?;
    print!("{}", table(&all));
    match growing(&all).as_str() {
        "" => Ok(()),
        names => Err(format!("soak of {}: not flat, or too few samples: {names}", options.store)),
    }
}

fn defective(options: &Options, grows: &str) -> Result {
    let all = sampled(options)?;
    let defect = options.defect.as_deref().unwrap_or_default();
    // Too few samples prove nothing.
    let is_found = all.iter().any(|it| it.name == grows && it.halves().is_some() && !it.is_flat());
    if !is_found {
        return Err(format!("the defect {defect} was not found:\n{}", table(&all)));
    }
    println!("   {}, {defect}: found, as it should be: {grows}", options.store);
    Ok(())
}

fn growing(all: &[Series]) -> String {
    let names: Vec<_> = all.iter().filter(|it| !it.is_flat()).map(|it| it.name).collect();
    names.join(", ")
}

fn sampled(options: &Options) -> Result<Vec<Series>> {
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
    let Options { store, defect, .. } = options;
    let defect = defect.as_ref().map_or_else(String::new, |defect| format!("-{defect}"));
    let dir = root().join(format!("target/soak/{store}{defect}-{millis}"));
    fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let all = load(options, &dir);
    fs::remove_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    all
}

fn load(options: &Options, dir: &Path) -> Result<Vec<Series>> {
    let path = built().join("debug/dq-faults-client");
    let history = ("DQ_FAULTS_HISTORY", "1".to_owned());
    let mut steady = Program { name: "steady", path, environment: vec![history] };
    if let Some(defect) = &options.defect {
        steady.environment.push(("DQ_FAULTS_DEFECT", defect.clone()));
    }
    let replaced = Program { name: "replaced", ..steady.clone() };
    let server = Server::start(&options.store, dir);
    let url = match &server {
        // The smallest log: several generations must fit into a run.
        Server::RabbitMq(rabbit) => format!("{}?log_size_mib=16", rabbit.url()),
        server => server.url(),
    };
    let mut crew = Crew::new(&url, dir, "log");
    for _process in 0..STEADY {
        crew.start(&steady, Mode::Soak)?;
    }
    crew.start(&replaced, Mode::Soak)?;
    let mut all = sample::series(&server);
    let pause = (options.length / SAMPLES).max(Duration::from_secs(1));
    let begin = Instant::now();
    let mut replaced_at = begin;
    while begin.elapsed() < options.length {
        thread::sleep(pause);
        if replaced_at.elapsed() >= REPLACED {
            crew.kill_one(&replaced);
            crew.start(&replaced, Mode::Soak)?;
            replaced_at = Instant::now();
        }
        let values = sample::sample(&server, &crew.processes(&steady))?;
        all.iter_mut().zip(values).for_each(|(series, value)| series.samples.push(value));
    }
    crew.stop_all(&steady);
    crew.stop_all(&replaced);
    let mut failures = crew.finish().failures;
    // A load that does nothing is flat too.
    if all.iter().any(|series| series.name == JOBS && !series.samples.iter().any(|&it| it > 0.0)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_says_what_grows() {
        let series = |unit, samples: [f64; 10]| Series {
            samples: samples.to_vec(),
            ..Series::new("x", unit, 0.0)
        };
        let text = table(&[
            series("MiB", [1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.25, 3.0]),
            series("", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]),
        ]);
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(lines, ["| x | 3.0 MiB | 3.2 MiB | flat |", "| x | 6 | 10 | **grows** |"]);
    }

    #[test]
    fn arguments_that_make_no_sense_are_refused() {
        for arguments in [&["--backend", "mysql"][..], &["--backend"], &["--minutes", "1"]] {
            assert!(parse(arguments).is_err(), "{arguments:?}");
        }
        let options = parse(&["--backend", "redis", "--minutes", "3"]).unwrap();
        assert_eq!((&*options.store, options.length.as_secs()), ("redis", 180));
    }
}
