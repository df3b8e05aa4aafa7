//! A client that schedules, replaces, cancels and runs jobs.

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
use dq_testkit::faults::Recorder;

use crate::clock::JumpingClock;
use crate::{defects, limited};

/// Ends a drain after `xtask` was killed; normally `xtask` ends it earlier.
const DRAIN_LIMIT: Duration = Duration::from_secs(300);

/// How long a starting process waits for the store. Longer than a short storm on a slow machine:
/// faults follow each other so quickly that connecting may succeed only after the last one.
const CONNECT_LIMIT: Duration = Duration::from_secs(300);
/// How many other pinned ids come before one is scheduled again.
const REPEATED_AFTER: usize = 8;
const TRIES: usize = 3;

/// Every third job fails at first, every fifth is first postponed, and every thirteenth continues
/// with another payload. The longest outlast a third of the lease, so they are renewed.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Produce,
    Drain,
    Soak,
}

/// Connects as soon as the store answers, with a trace if `trace` is set. The trace records
/// what a defect answers.
async fn connect(url: &str, trace: Option<&str>) -> Result<Dq, BoxError> {
    let clock: Arc<dyn Clock> = match env::var("DQ_FAULTS_CLOCK") {
        Ok(_) => Arc::new(JumpingClock),
        Err(_) => Arc::new(SystemClock),
    };
    let history = env::var("DQ_FAULTS_HISTORY").map(|_| HistoryLimit::default());
    let environment = Environment::new(clock.clone(), Arc::new(Entropy::from_os()))
        .history(HistoryLimits::all(history.unwrap_or(HistoryLimit::OFF)));
    let begin = Instant::now();
    let backend = loop {
        match backend_from_url(url)?.connect(&environment).await {
            Ok(backend) => break backend,
            Err(error) if begin.elapsed() > CONNECT_LIMIT => return Err(error.into()),
            Err(_) => tokio::time::sleep(100.millis()).await,
        }
    };
    let mut backend = defects::add(backend);
    if let Some(trace) = trace {
        backend = Recorder::in_file(backend, trace)?;
    }
    Ok(Dq::builder().clock(clock).backend(backend).connect().await?)
}

/// `file` is the trace or, in a soak, the file for the live job count.
pub(crate) async fn run(url: &str, file: &str, name: &str, mode: Mode) -> Result<(), BoxError> {
    // Listens before connecting, which can take as long as an outage: an unhandled signal ends the
    // process. A drain ignores signals.
    let interrupted = tokio::spawn(tokio::signal::ctrl_c());
    let dq = connect(url, (mode != Mode::Soak).then_some(file)).await?;
    let is_limited = limited::set_limits(&dq, CONNECT_LIMIT).await?;
    let stop = async {
        if mode == Mode::Drain {
            let begin = Instant::now();
            // An unreachable store may still have jobs.
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
                () = produce(&dq, name, mode, is_limited) => {}
                () = count(&dq, file), if mode == Mode::Soak => {}
            }
        }
    };
    limited::handlers(dq.runner().name(name)).run_until(stop).await?;
    // Other processes run the jobs this one has not settled. The process succeeds even without a
    // store.
    let _ = dq.close().await;
    // Exits without waiting for the thread on standard input.
    std::process::exit(0)
}

async fn live(dq: &Dq) -> Option<u64> {
    let mut live = 0;
    for stats in dq.stats().await.ok()? {
        live += stats.live();
    }
    Some(live)
}

/// Writes the number of unfinished jobs to a file each second, or an empty line if unknown.
async fn count(dq: &Dq, file: &str) {
    loop {
        let live = live(dq).await.map_or(String::new(), |live| live.to_string());
        // Replaces an earlier number. A reader may find an empty file, but never part of a number.
        let _ = std::fs::write(file, format!("{live}\n"));
        tokio::time::sleep(1.seconds()).await;
    }
}

/// Schedules jobs forever. Every seventh replaces the one before; if that one runs, every second
/// such replacement detaches it from its key. Every tenth job is cancelled. Every fourth has a
/// pinned id, which is scheduled again one or two seconds later, when some of these jobs have ended
/// and others have not.
async fn produce(dq: &Dq, name: &str, mode: Mode, is_limited: bool) {
    // A soak schedules twice as many, but fewer than a process can run (about 50 a second), so that
    // no backlog grows.
    let pause = if mode == Mode::Soak { 30.millis() } else { 60.millis() };
    let entropy = Entropy::from_os();
    let mut pinned = VecDeque::new();
    for number in 0_u64.. {
        let now = SystemTime::now();
        let delay = (number % 23 * 100).millis();
        // Alternates both forms. Uses the machine's time of day: the client's clock may be an hour
        // wrong (`clock.rs`), and a job would wait an hour.
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
        if number % 8 == 4 && is_limited && mode != Mode::Soak {
            limited::schedule(dq, number).await;
        }
        tokio::time::sleep(pause).await;
    }
}

/// Every seventh job shares its predecessor's key.
fn key_of(name: &str, number: u64) -> String {
    format!("{name}-{}", if number % 7 == 6 { number - 1 } else { number })
}

/// How long a job's id stays pinned: longer than any storm. In a soak, pins expire because the
/// store must not grow.
fn remember(mode: Mode, number: u64) -> Duration {
    match mode {
        _ if !number.is_multiple_of(4) => Duration::ZERO,
        Mode::Soak => 20.seconds(),
        Mode::Produce | Mode::Drain => 1.hours(),
    }
}

/// Schedules a job, which replaces one with its key. Tries again if the store does not answer.
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
