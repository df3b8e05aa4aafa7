//! A trial's child process: a runner on a SQLite file that aborts at a given point. Without a
//! point, it runs until its queues have no live job (scheduled, ready or running).

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dq::prelude::*;
use dq::{Event, HistoryLimit, JobId, Queue, QueueStats, Verdict};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// What the handler does: the payload of a job in [`faulty`]'s queue.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Plan {
    Succeed,
    /// The first delivery outlasts its lease, so the runner must renew it.
    SlowAtFirst,
    FailAtFirst,
    SnoozeAtFirst,
    Again,
    Skip,
    /// The handler rejects the job, which is then dead.
    Reject,
    AbortAtFirst,
}

#[delay_handler(
    "FAULTY",
    // Longer than a process waits for the processor.
    lease = "3s",
    // More crashes than any trial has, so that no job becomes dead.
    max_losses = 1000,
    // Longer than a crash takes, so that a retry runs in the next process.
    backoff(initial = "1s", max = "1s", jitter = 0.0)
)]
pub(crate) async fn faulty(
    ctx: JobContext,
    State(log): State<StartLog>,
    plan: Plan,
) -> HandlerResult {
    log.append(&ctx)?;
    match plan {
        Plan::Succeed => Ok(Outcome::Done),
        Plan::SlowAtFirst if ctx.deliveries() == 1 => {
            ctx.sleep(4_500.millis()).await;
            Ok(Outcome::Done)
        }
        Plan::FailAtFirst if ctx.attempt() == 1 => Err("not at the first attempt".into()),
        Plan::SnoozeAtFirst if ctx.deliveries() == 1 => Ok(Outcome::snooze(1.seconds())),
        Plan::Again => Ok(Outcome::again(1.seconds(), &Plan::Succeed)?),
        Plan::AbortAtFirst if ctx.deliveries() == 1 => std::process::abort(),
        Plan::SlowAtFirst | Plan::FailAtFirst | Plan::SnoozeAtFirst | Plan::AbortAtFirst => {
            Ok(Outcome::Done)
        }
        Plan::Skip => Ok(Outcome::skip("as planned")),
        Plan::Reject => Ok(Outcome::dead("as planned")),
    }
}

/// Aborts the process at every delivery.
#[delay_handler("POISON", lease = "3s", max_losses = 2)]
pub(crate) async fn poison(
    ctx: JobContext,
    State(log): State<StartLog>,
    _payload: (),
) -> HandlerResult {
    log.append(&ctx)?;
    std::process::abort()
}

dq::queue!(
    /// A queue without a handler in the same store.
    pub(crate) bystander: () = "BYSTANDER"
);

/// Where the process aborts, by the runner's events.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Point {
    /// Jobs are leased, and none has started.
    Claimed,
    Started,
    Renewed,
    /// The handler has returned; its lease is not settled.
    Finished,
    Settled,
    /// The runner begins to stop.
    Stopping,
    /// Shutdown without a grace period: the job is released.
    Released,
    /// The event with this number, from 1.
    Event(u64),
}

impl Point {
    /// Whether this event, the runner's `count`-th, is the point.
    fn is_reached(self, event: &Event<'_>, count: u64) -> bool {
        match (self, event) {
            (Self::Claimed, Event::Claimed { .. })
            | (Self::Started, Event::Started(_))
            | (Self::Renewed, Event::Renewed { .. })
            | (Self::Finished, Event::Finished { .. })
            | (Self::Settled, Event::Settled { .. })
            | (Self::Stopping, Event::Stopping { .. }) => true,
            (Self::Released, Event::Settled { verdict, .. }) => {
                matches!(verdict, Verdict::Release { .. })
            }
            (Self::Event(number), _) => count == number,
            _ => false,
        }
    }

    /// Whether the point is reached only if the runner stops while a handler runs.
    fn needs_stop(self) -> bool {
        matches!(self, Self::Stopping | Self::Released)
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) job: JobId,
    pub(crate) attempt: u32,
    pub(crate) delivery: u32,
    pub(crate) token: u64,
}

/// A file with one [`Start`] per line. It survives the process.
#[derive(Clone)]
pub(crate) struct StartLog {
    file: PathBuf,
    started: Arc<Notify>,
}

impl StartLog {
    fn append(&self, ctx: &JobContext) -> std::io::Result<()> {
        let start = Start {
            job: ctx.id(),
            attempt: ctx.attempt(),
            delivery: ctx.deliveries(),
            token: ctx.fencing_token().0,
        };
        let mut file = OpenOptions::new().create(true).append(true).open(&self.file)?;
        file.write_all(format!("{}\n", serde_json::to_string(&start)?).as_bytes())?;
        self.started.notify_one();
        Ok(())
    }
}

pub(crate) struct ChildOptions {
    dir: PathBuf,
    point: Option<Point>,
}

const DIR: &str = "DQ_FAULT_DIR";
const POINT: &str = "DQ_FAULT_POINT";

impl ChildOptions {
    /// `None` in the process that runs the trials.
    pub(crate) fn from_env() -> Option<Self> {
        let dir = std::env::var_os(DIR)?.into();
        let point = std::env::var(POINT).ok();
        let point = point.map(|text| serde_json::from_str(&text).expect("a known point"));
        Some(Self { dir, point })
    }
}

pub(crate) async fn connect(dir: &Path) -> dq::Result<Dq> {
    let url = format!("sqlite://{}", dir.join("jobs.db").display());
    Dq::builder()
        .url(&url)
        .defaults(QueueSettings::new().history(HistoryLimit::default()))
        .connect()
        .await
}

/// Runs the child process until it exits. With a point, it should abort.
pub(crate) fn spawn(dir: &Path, point: Option<Point>) -> ExitStatus {
    let this = std::env::current_exe().expect("the path of this test");
    let mut command = Command::new(this);
    command.current_dir(dir).env(DIR, dir).env_remove(POINT);
    command.envs(point.map(|point| (POINT, serde_json::to_string(&point).expect("JSON"))));
    command.status().expect("the child process starts")
}

/// Whether a process has aborted: a signal has ended it, so it has no exit code.
pub(crate) fn aborted(status: ExitStatus) -> bool {
    status.code().is_none()
}

pub(crate) fn starts(dir: &Path) -> Vec<Start> {
    let text = std::fs::read_to_string(dir.join("starts")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("a complete line")).collect()
}

#[tokio::main]
pub(crate) async fn run(options: &ChildOptions) -> ExitCode {
    match run_until_empty(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run_until_empty(options: &ChildOptions) -> dq::Result<()> {
    let dq = connect(&options.dir).await?;
    let started = Arc::new(Notify::new());
    let log = StartLog { file: options.dir.join("starts"), started: Arc::clone(&started) };
    let (point, count) = (options.point, AtomicU64::new(0));
    let observer = move |event: &Event<'_>| {
        let count = count.fetch_add(1, Ordering::Relaxed) + 1;
        if point.is_some_and(|point| point.is_reached(event, count)) {
            std::process::abort();
        }
    };
    let is_empty = |stats: &QueueStats| {
        stats.stored() == stats.dead || stats.queue.as_str() == bystander::code()
    };
    let empty = async {
        while !dq.stats().await.is_ok_and(|queues| queues.iter().all(is_empty)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let shutdown = async {
        tokio::select! {
            () = empty => {}
            () = started.notified(), if point.is_some_and(Point::needs_stop) => {}
        }
    };
    let runner = dq.runner().state(log).observer(observer);
    runner.grace(Duration::ZERO).run_until(shutdown).await?;
    dq.close().await
}
