//! One run: a storm, and its judgement.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fmt, thread};

use super::defect::Defect;
use super::dice::Dice;
use super::fault::Deck;
use super::proxy::Proxy;
use super::scene::Scene;
use super::server::Server;
use crate::crew::{Crew, Mode, Program};
use crate::run::{Result, built, cargo, output, root, step, wait};

/// Processes that run at the same time.
const PROCESSES: usize = 3;

/// Minimum number of faults of a run that has each once: a store with fewer kinds has some of them
/// twice.
const MIN_FAULTS: usize = 8;

/// Longer than the lease of the client (3 s).
const LAST_PAUSE: Duration = Duration::from_secs(4);

/// How long processes may take to connect and to schedule a job, on a slow machine.
const START_LIMIT: Duration = Duration::from_secs(180);

/// How long the judge may take, on a slow machine.
const JUDGE_LIMIT: Duration = Duration::from_secs(300);

/// Builds the client as `cargo xtask test` does, for its own test `usage`, so that what that has
/// built is used: a plain build has other features of the dependencies.
pub(crate) fn build() -> Result {
    let build = ["test", "--workspace", "--all-features", "--no-run", "--test", "usage"];
    step("faults client", &mut cargo(build))
}

/// How long a storm goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    Time(Duration),
    /// Until each fault of the store has come once, soon after one another.
    EachFaultOnce,
}

impl Length {
    /// Between the end of a fault and the next one, in milliseconds.
    const fn pause(self) -> (u64, u64) {
        match self {
            Self::Time(_) => (300, 2_000),
            Self::EachFaultOnce => (100, 600),
        }
    }
}

/// What to run.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) store: String,
    pub(super) seed: u64,
    pub(super) length: Length,
    /// What is broken on purpose in the processes.
    pub(super) defect: Option<Defect>,
}

/// The judgement of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Kept,
    Violated,
}

/// The judgement, with the faults and what the judge has printed.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) verdict: Verdict,
    pub(super) text: String,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, seed {}, ", self.store, self.seed)?;
        match self.length {
            Length::Time(time) => write!(f, "{} s", time.as_secs())?,
            Length::EachFaultOnce => f.write_str("each fault once")?,
        }
        match &self.defect {
            Some(defect) => write!(f, ", defect {}", defect.name),
            None => Ok(()),
        }
    }
}

impl Run {
    pub(super) fn new(store: &str, seed: u64, length: Length) -> Self {
        Self { store: store.to_owned(), seed, length, defect: None }
    }

    /// Does the run with the client that was built. Fails if it cannot be judged. The journals stay
    /// in `target/faults` if it does, or if a sound client has broken a promise; those of a defect,
    /// which is meant to break one, are removed.
    pub(super) fn execute(&self) -> Result<Report> {
        let dir = self.directory()?;
        let report = self
            .storm_and_judge(&dir)
            .map_err(|error| format!("{self}: {error}\nthe journals are in {}", dir.display()))?;
        if report.verdict == Verdict::Kept || self.defect.is_some() {
            fs::remove_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
            return Ok(report);
        }
        let text = format!("{}\n   the journals are in {}", report.text, dir.display());
        Ok(Report { text, ..report })
    }

    /// Creates the directory of the journals.
    fn directory(&self) -> Result<PathBuf> {
        let millis =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
        let defect = self.defect.map_or_else(String::new, |defect| format!("-{}", defect.name));
        let name = format!("{}{defect}-{}-{millis}", self.store, self.seed);
        let dir = root().join("target/faults").join(name);
        fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        Ok(dir)
    }

    fn storm_and_judge(&self, dir: &Path) -> Result<Report> {
        let path = built().join("debug/dq-faults-client");
        let mut sound = Program { name: "client", path, environment: Vec::new() };
        // Ids are refused by pins or by the history: without one, storms see that pins suffice.
        if self.seed.is_multiple_of(2) {
            sound.environment.push(("DQ_FAULTS_HISTORY", "1".to_owned()));
        }
        let mut program = sound.clone();
        if let Some(defect) = self.defect {
            program.environment.push(("DQ_FAULTS_DEFECT", defect.name.to_owned()));
        }
        let server = Server::start_on_small_disk(&self.store, dir)?;
        let faults = self.storm(&server, &program, &sound, dir)?;
        let conditions = conditions(&server);
        let (verdict, judgement) = judge(&program, &server.url(), dir)?;
        Ok(Report { verdict, text: format!("   {conditions}\n   {faults}\n{judgement}") })
    }

    /// Runs clients under faults, then a sound one without faults until no job is left. Returns how
    /// many faults of each kind there were.
    fn storm(
        &self,
        server: &Server,
        program: &Program,
        sound: &Program,
        dir: &Path,
    ) -> Result<String> {
        let mut dice = Dice::new(self.seed);
        let mut deck = Deck::new(server.faults());
        let address = server.address();
        let proxy = address.as_ref().map(|address| Proxy::start(sound, address)).transpose()?;
        let url = match (&proxy, &address) {
            (Some(proxy), Some(address)) => proxy.url(&server.url(), address),
            _ => server.url(),
        };
        let mut scene = Scene { server, proxy, crew: Crew::new(&url, dir, "jsonl"), program };
        for _process in 0..PROCESSES {
            scene.crew.start(program, Mode::Produce)?;
        }
        await_work(&scene.crew, program)?;
        // A server that is killed right after a declaration may forget it, which is not what is
        // tested.
        thread::sleep(Duration::from_secs(1));
        server.sync();
        let begin = Instant::now();
        let goes_on = |deck: &Deck| match self.length {
            Length::Time(time) => begin.elapsed() < time,
            Length::EachFaultOnce => !deck.has_dealt_all() || deck.dealt() < MIN_FAULTS,
        };
        let (min_pause, max_pause) = self.length.pause();
        let mut counts = BTreeMap::<String, usize>::new();
        while goes_on(&deck) {
            thread::sleep(dice.millis(min_pause, max_pause));
            let fault = deck.draw(&mut dice);
            *counts.entry(format!("{fault:?}")).or_default() += 1;
            scene.inflict(fault, &mut dice)?;
        }
        // The leases of processes that were killed last end, and their jobs run again.
        thread::sleep(LAST_PAUSE);
        scene.crew.stop_all(program);
        scene.crew.start(sound, Mode::Drain)?;
        let Scene { crew, .. } = scene;
        let ends = crew.finish();
        let counts: Vec<_> = counts.iter().map(|(name, times)| format!("{name} {times}")).collect();
        let counts = counts.join(", ");
        if ends.failures.is_empty() {
            Ok(counts)
        } else {
            Err(format!("{counts}\n{}", ends.failures.join("\n")))
        }
    }
}

/// Waits until each process has scheduled a job: a storm before that would test little.
fn await_work(crew: &Crew, program: &Program) -> Result {
    let begin = Instant::now();
    for (_, journal) in crew.processes(program) {
        let at_work = || {
            let text = fs::read_to_string(&journal).unwrap_or_default();
            text.contains(r#""answer":{"Schedule""#)
        };
        while !at_work() {
            if begin.elapsed() > START_LIMIT {
                let seconds = START_LIMIT.as_secs();
                return Err(format!("{}: nothing scheduled in {seconds} s", journal.display()));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

/// What was tested, for a record of the run.
fn conditions(server: &Server) -> String {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty"]).current_dir(root());
    // A copy of the sources without their history has no revision.
    let revision = output("git", &mut git).unwrap_or_else(|_| "unknown".to_owned());
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let server = server.version().map_or_else(String::new, |version| format!(", {version}"));
    format!("revision {}{server}, {processors} processors", revision.trim())
}

/// Judges the journals in `dir`, with what the store holds. Also returns what the judge has printed.
fn judge(program: &Program, url: &str, dir: &Path) -> Result<(Verdict, String)> {
    let path = dir.join("judgement");
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = File::create(&path).map_err(failed)?;
    let mut command = Command::new(&program.path);
    // With the defect, too: `miscounts` falsifies the counts that a process reads, and only the judge reads
    // them.
    command.envs(program.environment.iter().map(|(name, value)| (name, value)));
    command.arg(url).arg(dir).arg("judge").stdout(file.try_clone().map_err(failed)?).stderr(file);
    let status = wait("the judge", &mut command, JUDGE_LIMIT)?;
    let text = fs::read_to_string(&path).map_err(failed)?;
    match status.code() {
        Some(0) => Ok((Verdict::Kept, text)),
        // It has other errors than violations, too.
        Some(_) if text.contains(" violations:") => Ok((Verdict::Violated, text)),
        _ => Err(format!("the judge ended with {status}:\n{text}")),
    }
}
