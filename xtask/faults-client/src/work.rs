//! A client: schedules, replaces and cancels jobs, and runs them.

use std::collections::VecDeque;
use std::env;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use dq::backend::backend_from_url;
use dq::config::Environment;
use dq::prelude::*;
use dq::{
    BoxError, Clock, Due, Entropy, HistoryLimit, HistoryLimits, JobId, OnConflict, OnRunning,
    SystemClock, Timestamp,
};
use dq_testkit::faults::Journal;

use crate::clock::JumpingClock;
use crate::defects;

/// How long a drain may take. `xtask` ends it earlier; this is for a drain whose `xtask` was killed.
const DRAIN_LIMIT: Duration = Duration::from_secs(300);

/// How long a store may be away when a process starts: longer than any fault, on a slow machine.
const CONNECT_LIMIT: Duration = Duration::from_secs(120);
/// A pinned id is scheduled again after so many others.
const REPEATED_AFTER: usize = 8;
/// How often a call is made at most, until it succeeds.
const TRIES: usize = 3;

/// Every third job fails at first, every fifth is postponed at first, and one of thirteen goes on with
/// another payload. The longest take longer than a third of the lease, after which it is renewed.
#[delay_handler(
    "FAULTS",
    lease = "3s",
    concurrency = 64,
    max_losses = 1000,
    backoff(initial = "300ms", max = "300ms", jitter = 0.0)
)]
pub(crate) async fn work(ctx: JobContext, number: u64) -> HandlerResult {
    ctx.sleep((number % 11 * 150).millis()).await;
    if number.is_multiple_of(3) && ctx.attempt() == 1 {
        return Err("it fails at first".into());
    }
    if number.is_multiple_of(5) && ctx.deliveries() == 1 {
        return Ok(Outcome::snooze(200.millis()));
    }
    if number % 13 == 5 {
        return Ok(Outcome::again(200.millis(), &(number + 1))?);
    }
    Ok(Outcome::Done)
}

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Schedules and runs jobs.
    Produce,
    /// Runs jobs until none is left.
    Drain,
    /// Schedules and runs more jobs, and counts those in the store.
    Soak,
}

/// Connects, with a journal if there is a file for one, as soon as the store answers. The journal
/// sees what a defect answers.
async fn connect(url: &str, journal: Option<&str>) -> Result<Dq, BoxError> {
    let clock: Arc<dyn Clock> = match env::var("DQ_FAULTS_CLOCK") {
        Ok(_) => Arc::new(JumpingClock),
        Err(_) => Arc::new(SystemClock),
    };
    let history = env::var("DQ_FAULTS_HISTORY").map(|_| HistoryLimit::default());
    let environment = Environment::new(clock.clone(), Arc::new(Entropy::from_os()))
        .history(HistoryLimits::all(history.unwrap_or(HistoryLimit::OFF)));
    let begin = Instant::now();
    let mut backend = loop {
        match backend_from_url(url)?.connect(&environment).await {
            Ok(backend) => break backend,
            Err(error) if begin.elapsed() > CONNECT_LIMIT => return Err(error.into()),
            Err(_) => tokio::time::sleep(100.millis()).await,
        }
    };
    if let Ok(defect) = env::var("DQ_FAULTS_DEFECT") {
        backend = defects::add(&defect, backend)?;
    }
    if let Some(journal) = journal {
        backend = Journal::over(backend, journal)?;
    }
    Ok(Dq::builder().clock(clock).backend(backend).connect().await?)
}

/// Does what `mode` says. `file` is the journal or, in a soak, that of the number of live jobs.
pub(crate) async fn run(url: &str, file: &str, name: &str, mode: Mode) -> Result<(), BoxError> {
    // Listens before the process connects, which can take as long as an outage: a signal that nobody
    // listens to would end the process. A drain does not end at a signal.
    let interrupted = tokio::spawn(tokio::signal::ctrl_c());
    let dq = connect(url, (mode != Mode::Soak).then_some(file)).await?;
    let stop = async {
        if mode == Mode::Drain {
            let begin = Instant::now();
            // A store that does not answer may still have jobs.
            while live(&dq).await != Some(0) && begin.elapsed() < DRAIN_LIMIT {
                tokio::time::sleep(100.millis()).await;
            }
        } else {
            let input_ends = tokio::task::spawn_blocking(|| {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
            });
            tokio::select! {
                _ = input_ends => {}
                _ = interrupted => {}
                () = produce(&dq, name, mode) => {}
                () = count(&dq, file), if mode == Mode::Soak => {}
            }
        }
    };
    dq.runner().name(name).run_until(stop).await?;
    // What it has not settled runs elsewhere. A store that is away does not make the process fail.
    let _ = dq.close().await;
    // Without waiting for the thread that reads the standard input.
    std::process::exit(0)
}

/// The number of jobs that are not finished; `None` if the store does not answer.
async fn live(dq: &Dq) -> Option<u64> {
    Some(dq.queue_of::<work>().ok()?.stats().await.ok()?.live())
}

/// Writes the number of jobs that are not finished to a file, each second; nothing if it is not known.
async fn count(dq: &Dq, file: &str) {
    loop {
        let live = live(dq).await.map_or(String::new(), |live| live.to_string());
        // In place of an earlier number; a reader may find an empty file, never a part of a number.
        let _ = std::fs::write(file, format!("{live}\n"));
        tokio::time::sleep(1.seconds()).await;
    }
}

/// Schedules jobs for ever. Every seventh replaces the one before; if that runs, every second of these
/// detaches it from its key. Every tenth is cancelled. The ids of every fourth are pinned, and scheduled
/// again one or two seconds later, when some of their jobs have ended and others have not.
async fn produce(dq: &Dq, name: &str, mode: Mode) {
    // In a soak twice as many, but fewer than the slots of a process can run (about 50 a second), so that
    // no backlog grows.
    let pause = if mode == Mode::Soak { 30.millis() } else { 60.millis() };
    let entropy = Entropy::from_os();
    let mut pinned = VecDeque::new();
    for number in 0_u64.. {
        let now = SystemTime::now();
        let delay = (number % 23 * 100).millis();
        // Both forms by turns. The time of day is the machine's, not that of the client's clock, which may
        // be an hour wrong (`clock.rs`): otherwise jobs would wait for an hour.
        let due = if number % 2 == 0 { Due::After(delay) } else { Due::At((now + delay).into()) };
        let id = entropy.job_id(Timestamp::from(now));
        let remember = remember(mode, number);
        schedule(dq, name, id, number, due, remember).await;
        if !remember.is_zero() {
            pinned.push_back((id, number));
            if pinned.len() > REPEATED_AFTER
                && let Some((id, number)) = pinned.pop_front()
            {
                schedule(dq, name, id, number, due, remember).await;
            }
        }
        if number % 10 == 9 {
            for _try in 0..TRIES {
                if dq.cancel::<work>(key_of(name, number)).await.is_ok() {
                    break;
                }
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// The key of a job; every seventh has that of the one before.
fn key_of(name: &str, number: u64) -> String {
    format!("{name}-{}", if number % 7 == 6 { number - 1 } else { number })
}

/// For how long the id of a job is pinned: longer than any storm, but not for ever in a soak, whose
/// store must not grow.
fn remember(mode: Mode, number: u64) -> Duration {
    match mode {
        _ if !number.is_multiple_of(4) => Duration::ZERO,
        Mode::Soak => 20.seconds(),
        Mode::Produce | Mode::Drain => 1.hours(),
    }
}

/// Schedules a job, and repeats the call with the same id while it fails.
async fn schedule(dq: &Dq, name: &str, id: JobId, number: u64, due: Due, remember: Duration) {
    for _try in 0..TRIES {
        let job = dq.schedule::<work>(number).id(id).key(key_of(name, number));
        let detaches = number % 14 == 13;
        let job = job.on_running(if detaches { OnRunning::Detach } else { OnRunning::Refuse });
        let job = job.remember(remember);
        let job = match due {
            Due::After(delay) => job.after(delay),
            Due::At(time) => job.at(time),
        };
        if job.on_conflict(OnConflict::Replace).await.is_ok() {
            break;
        }
        tokio::time::sleep(50.millis()).await;
    }
}
