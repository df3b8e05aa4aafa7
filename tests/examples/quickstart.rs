//! `quickstart`: all jobs fire. After a kill at any line, the next start runs the remaining ones.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use dq::{Dq, JobState};

use crate::program::Program;

const NAME: &str = "quickstart";

/// The job number in a line like `  job 3 fired 2 ms late`; `None` for other lines.
fn fired_job(line: &str) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["job", number, "fired", ..] => number.parse().ok(),
        _ => None,
    }
}

/// Returns the numbers of the jobs that fired. Asserts that repeats are marked.
fn fired_jobs(lines: &[String]) -> BTreeSet<u32> {
    assert_repeats_are_marked(lines);
    lines.iter().filter_map(|line| fired_job(line)).collect()
}

/// A job that fires again is marked `(again: …)`: its runner was killed, or suspended beyond its
/// lease.
fn assert_repeats_are_marked(lines: &[String]) {
    let mut unmarked = BTreeSet::new();
    for line in lines.iter().filter(|line| !line.contains("(again:")) {
        assert!(
            fired_job(line).is_none_or(|number| unmarked.insert(number)),
            "fired twice: {lines:#?}"
        );
    }
}

#[derive(Debug, Default)]
struct StoredJobs {
    all: BTreeSet<u32>,
    claimed: BTreeSet<u32>,
}

#[tokio::main(flavor = "current_thread")]
async fn stored_jobs(dir: &Path) -> StoredJobs {
    let dq = Dq::connect(&format!("sqlite://{}/quickstart.db", dir.display())).await.unwrap();
    let queue = dq.queue("QUICKSTART").unwrap();
    let mut stored = StoredJobs::default();
    // In this order, a job that becomes ready meanwhile is not missed, but may appear twice.
    for state in [JobState::Scheduled, JobState::Running, JobState::Ready, JobState::Dead] {
        for view in queue.browse(state).limit(1_000).await.unwrap().jobs {
            assert_ne!(state, JobState::Dead, "a killed runner makes no job dead");
            let number = view.payload().unwrap();
            stored.all.insert(number);
            if view.job.deliveries > 0 {
                stored.claimed.insert(number);
            }
        }
    }
    dq.close().await.unwrap();
    stored
}

#[test]
fn all_jobs_fire_and_the_next_start_schedules_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    for _round in 0..2 {
        let start = Instant::now();
        let mut program = Program::start(NAME, dir.path(), &["--jobs", "4", "--within", "1"]);
        let lines = program.rest();
        assert!(program.wait().success());
        assert!(start.elapsed() >= Duration::from_secs(1), "early: {lines:?}");
        assert_eq!(lines[0], "scheduled 4 jobs");
        assert_eq!(fired_jobs(&lines), (1..=4).collect());
        assert_eq!(lines.last().unwrap(), "0 jobs left for the next start");
    }
}

#[test]
fn after_a_kill_at_any_line_the_next_start_runs_the_rest() {
    std::thread::scope(|scope| {
        for lines in 1..=6 {
            scope.spawn(move || kill_and_restart(5, "1", lines));
        }
    });
}

#[test]
fn ctrl_c_leaves_pending_jobs_for_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = Program::start(NAME, dir.path(), &["--jobs", "2", "--within", "3600"]);
    program.line();
    program.signal("INT");
    assert_eq!(program.rest(), ["2 jobs left for the next start"]);
    assert!(program.wait().success());
}

#[test]
fn another_backend_can_be_a_server() {
    // Longer than any call takes on a busy machine.
    let rabbit = dq_servers::shared_rabbitmq().vhost("quickstart") + "?response_timeout=60s";
    let redis = dq_servers::shared_redis().url() + "?response_timeout=60s";
    for url in [redis, rabbit] {
        let dir = tempfile::tempdir().unwrap();
        let arguments = ["--jobs", "40", "--within", "4", "--backend", &url];
        let mut killed = Program::start(NAME, dir.path(), &arguments);
        assert_eq!(killed.line().unwrap(), "scheduled 40 jobs");
        let first = killed.line().and_then(|line| fired_job(&line)).expect("a job");
        killed.kill();
        let mut ran = fired_jobs(&killed.rest());
        ran.insert(first);
        let mut program = Program::start(NAME, dir.path(), &arguments[2..]);
        ran.extend(fired_jobs(&program.rest()));
        assert!(program.wait().success());
        assert_eq!(ran, (1..=40).collect());
    }
}

/// Kills the example after some output lines, restarts it, and compares output and store. The first
/// line reports the scheduled jobs, each later line a fired job, and the last line the jobs left.
fn kill_and_restart(jobs: u32, within: &str, kill_after: usize) {
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["--jobs", &jobs.to_string(), "--within", within];
    let mut killed = Program::start(NAME, dir.path(), &arguments);
    let mut before: Vec<String> = (0..kill_after).map(|_| killed.line().unwrap()).collect();
    killed.kill();
    before.extend(killed.rest());

    let stored = stored_jobs(dir.path());
    let mut after = Vec::new();
    if !stored.all.is_empty() {
        let mut program = Program::start(NAME, dir.path(), &[]);
        after = program.rest();
        assert!(program.wait().success());
    }
    let details = format!("before: {before:#?}\nstored: {stored:?}\nafter: {after:#?}");
    let fired = fired_jobs(&before);
    assert_eq!(&fired | &stored.all, (1..=jobs).collect(), "lost: {details}");
    assert!((&fired & &stored.all).is_subset(&stored.claimed), "fired but not claimed: {details}");
    assert_eq!(fired_jobs(&after), stored.all, "exactly the remaining jobs fire: {details}");
    assert_repeats_are_marked(&[before, after].concat());
}
