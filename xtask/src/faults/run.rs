//! One run: a storm and its verdict.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fmt, thread};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::fault::Deck;
use super::proxy::Proxy;
use super::scene::Scene;
use super::server::Server;
use crate::crew::{Crew, DRAIN, PRODUCE, Program};
use crate::run::{Result, cargo, new_run_dir, output, root, step, target_dir, wait_with_limit};

const PROCESSES: usize = 3;

/// Minimum faults when each comes once: stores with fewer kinds repeat some.
const MIN_FAULTS: usize = 8;

/// Longer than the client's lease (3 s).
const PAUSE_AFTER_STORM: Duration = Duration::from_secs(4);

/// How long processes may take to connect and schedule a job, on a slow machine.
const START_LIMIT: Duration = Duration::from_secs(180);

const JUDGE_LIMIT: Duration = Duration::from_secs(300);

/// Builds the client via its `usage` test, as `cargo xtask test` does, to reuse that build: a plain
/// build selects other dependency features.
pub(crate) fn build() -> Result {
    let build = ["test", "--workspace", "--all-features", "--no-run", "--test", "usage"];
    step("faults client", &mut cargo(build))
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) store: String,
    pub(super) seed: u64,
    /// `None`: until each of the store's faults has come once, in quick succession.
    pub(super) length: Option<Duration>,
    pub(super) defect: Option<String>,
}

#[derive(Debug)]
pub(super) struct Report {
    pub(super) is_violated: bool,
    pub(super) text: String,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, seed {}, ", self.store, self.seed)?;
        match self.length {
            Some(time) => write!(f, "{} s", time.as_secs())?,
            None => f.write_str("each fault once")?,
        }
        match &self.defect {
            Some(defect) => write!(f, ", defect {defect}"),
            None => Ok(()),
        }
    }
}

impl Run {
    /// Runs with the built client. Fails if the run cannot be judged. The traces stay in
    /// `target/faults` after a failure, or if a sound client breaks a promise. A run with a defect
    /// removes them, because the defect is meant to break a promise.
    pub(super) fn execute(&self) -> Result<Report> {
        let defect = self.defect.as_deref().unwrap_or("sound");
        let dir = new_run_dir("faults", &format!("{}-{defect}-{}", self.store, self.seed))?;
        let report = self
            .storm_and_judge(&dir)
            .map_err(|error| format!("{self}: {error}\nthe traces are in {}", dir.display()))?;
        if !report.is_violated || self.defect.is_some() {
            fs::remove_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
            return Ok(report);
        }
        let text = format!("{}\n   the traces are in {}", report.text, dir.display());
        Ok(Report { text, ..report })
    }

    fn storm_and_judge(&self, dir: &Path) -> Result<Report> {
        let path = target_dir().join("debug/dq-faults-client");
        let mut sound = Program { name: "client", path, environment: Vec::new() };
        // The store refuses known ids by pin or by history. Storms without a history prove that
        // pins suffice.
        if self.seed.is_multiple_of(2) {
            sound.environment.push(("DQ_FAULTS_HISTORY", "1".to_owned()));
        }
        let mut program = sound.clone();
        if let Some(defect) = &self.defect {
            program.environment.push(("DQ_FAULTS_DEFECT", defect.clone()));
        }
        let server = Server::start_on_small_disk(&self.store, dir)?;
        let faults = self.storm(&server, &program, &sound, dir)?;
        let conditions = conditions(&server);
        let (is_violated, judgement) = judge(&program, &server.url(), dir)?;
        Ok(Report { is_violated, text: format!("   {conditions}\n   {faults}\n{judgement}") })
    }

    /// Runs clients under faults, then a sound one without faults until no job is left. Returns the
    /// number of faults per kind.
    fn storm(
        &self,
        server: &Server,
        program: &Program,
        sound: &Program,
        dir: &Path,
    ) -> Result<String> {
        let mut rng = SmallRng::seed_from_u64(self.seed);
        let mut deck = Deck::new(server.faults());
        let address = server.address();
        let proxy = address.as_ref().map(|address| Proxy::start(sound, address)).transpose()?;
        let mut urls = server.urls();
        if let (Some(proxy), Some(address)) = (&proxy, &address) {
            urls.iter_mut().for_each(|url| *url = proxy.url(url, address));
        }
        let mut scene = Scene { server, proxy, crew: Crew::new(urls, dir, "jsonl"), program };
        for _process in 0..PROCESSES {
            scene.crew.start(program, PRODUCE)?;
        }
        await_work(&scene.crew, program)?;
        // A server killed right after a declaration may forget it; that is not under test.
        thread::sleep(Duration::from_secs(1));
        server.sync();
        let begin = Instant::now();
        let is_over = |deck: &Deck| match self.length {
            Some(time) => begin.elapsed() >= time,
            None => deck.has_dealt(MIN_FAULTS),
        };
        // Milliseconds between the end of a fault and the next one.
        let pause = if self.length.is_some() { 300..2_000 } else { 100..600 };
        let mut counts = BTreeMap::<String, usize>::new();
        while !is_over(&deck) {
            thread::sleep(Duration::from_millis(rng.random_range(pause.clone())));
            let fault = deck.draw(&mut rng);
            *counts.entry(format!("{fault:?}")).or_default() += 1;
            scene.inflict(fault, &mut rng)?;
        }
        // Waits until the leases of recently killed processes expire and their jobs run again.
        thread::sleep(PAUSE_AFTER_STORM);
        scene.crew.stop_all(program);
        scene.crew.start(sound, DRAIN)?;
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

const RETURN: &str = r#"{"Return":"#;
const SCHEDULED: &str = r#""answer":"Created""#;

/// Waits until each process has scheduled a job: an earlier storm tests little.
fn await_work(crew: &Crew, program: &Program) -> Result {
    let begin = Instant::now();
    for (_, trace) in crew.processes(program) {
        let at_work = || {
            let text = fs::read_to_string(&trace).unwrap_or_default();
            text.lines().any(|line| line.starts_with(RETURN) && line.contains(SCHEDULED))
        };
        while !at_work() {
            if begin.elapsed() > START_LIMIT {
                let seconds = START_LIMIT.as_secs();
                return Err(format!("{}: nothing scheduled in {seconds} s", trace.display()));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

fn conditions(server: &Server) -> String {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty"]).current_dir(root());
    let revision = output("git", &mut git).unwrap_or_else(|_| "unknown".to_owned());
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let server = server.version().map_or_else(String::new, |version| format!(", {version}"));
    format!("revision {}{server}, {processors} processors", revision.trim())
}

/// Returns whether a promise is broken, and the judge's output.
fn judge(program: &Program, url: &str, dir: &Path) -> Result<(bool, String)> {
    let path = dir.join("judgement");
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = File::create(&path).map_err(failed)?;
    let mut command = Command::new(&program.path);
    // Includes the defect: `miscounts` falsifies counts on reading, and only the judge reads them.
    command.envs(program.environment.iter().map(|(name, value)| (name, value)));
    command.arg(url).arg(dir).arg("judge").stdout(file.try_clone().map_err(failed)?).stderr(file);
    let mut child = command.spawn().map_err(|error| format!("the judge: {error}"))?;
    let status = wait_with_limit("the judge", &mut child, JUDGE_LIMIT)?;
    let text = fs::read_to_string(&path).map_err(failed)?;
    match status.code() {
        Some(0) => Ok((false, text)),
        // The judge also fails for other reasons.
        Some(_) if text.contains(" violations:") => Ok((true, text)),
        _ => Err(format!("the judge ended with {status}:\n{text}")),
    }
}
