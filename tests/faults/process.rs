//! The process that dies: a runner over a SQLite file that aborts itself at a point it was told.
//! The next one is told no point, and finishes.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dq::prelude::*;
use dq::{Event, JobId, Queue, QueueStats, Verdict};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// What the job under test does.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Plan {
    Succeed,
    /// Takes longer than a lease, once, so that it must be renewed.
    LingerAtFirst,
    FailAtFirst,
    SnoozeAtFirst,
    SkipIt,
    Die,
    /// Takes its process with it, once.
    AbortAtFirst,
}

#[delay_handler(
    "FAULTY",
    lease = "1s",
    max_losses = 1000,
    // Longer than a crash takes: what runs again does so in the next process.
    backoff(initial = "1s", max = "1s", jitter = 0.0)
)]
pub(crate) async fn faulty(ctx: JobContext, State(log): State<Log>, plan: Plan) -> HandlerResult {
    log.note(&ctx)?;
    match plan {
        Plan::Succeed => Ok(Outcome::Done),
        Plan::LingerAtFirst if ctx.deliveries() == 1 => {
            ctx.sleep(1_500.millis()).await;
            Ok(Outcome::Done)
        }
        Plan::FailAtFirst if ctx.attempt() == 1 => Err("not at the first attempt".into()),
        Plan::SnoozeAtFirst if ctx.deliveries() == 1 => Ok(Outcome::snooze(1.seconds())),
        Plan::AbortAtFirst if ctx.deliveries() == 1 => std::process::abort(),
        Plan::LingerAtFirst | Plan::FailAtFirst | Plan::SnoozeAtFirst | Plan::AbortAtFirst => {
            Ok(Outcome::Done)
        }
        Plan::SkipIt => Ok(Outcome::skip("as planned")),
        Plan::Die => Ok(Outcome::dead("as planned")),
    }
}

/// Takes every process with it.
#[delay_handler("POISON", lease = "1s", max_losses = 2)]
pub(crate) async fn poison(ctx: JobContext, State(log): State<Log>, _payload: ()) -> HandlerResult {
    log.note(&ctx)?;
    std::process::abort()
}

dq::queue!(
    /// Jobs of somebody else in the same store.
    pub(crate) bystander: () = "BYSTANDER"
);

/// Where a runner aborts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// Jobs are leased; none has started.
    Claimed,
    /// The handler is about to be called.
    Started,
    /// A lease was extended.
    Renewed,
    /// The handler has ended; the store does not know.
    Finished,
    /// The store was told.
    Settled,
    /// Told to stop, with a handler running.
    Stopping,
    /// Stopped without grace: the store was told that the job is handed back.
    Released,
    /// Whatever the runner does for the n-th time.
    Event(u64),
}

impl Point {
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
            (Self::Event(n), _) => count == n,
            _ => false,
        }
    }

    /// Whether the runner must be told to stop, while a handler runs, for this to be reached.
    fn needs_stop(self) -> bool {
        matches!(self, Self::Stopping | Self::Released)
    }
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = [
            Self::Claimed,
            Self::Started,
            Self::Renewed,
            Self::Finished,
            Self::Settled,
            Self::Stopping,
            Self::Released,
        ];
        let known = named.into_iter().find(|point| format!("{point:?}") == text);
        let counted = || text.parse().ok().map(Self::Event);
        known.or_else(counted).ok_or_else(|| format!("no point is called {text:?}"))
    }
}

/// One run of the handler, as it noted it down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) job: JobId,
    pub(crate) attempt: u32,
    pub(crate) delivery: u32,
    pub(crate) token: u64,
}

/// A file of runs, a line each, that outlives the process.
#[derive(Clone)]
pub(crate) struct Log {
    file: PathBuf,
    noted: Arc<Notify>,
}

impl Log {
    fn note(&self, ctx: &JobContext) -> std::io::Result<()> {
        let (attempt, delivery) = (ctx.attempt(), ctx.deliveries());
        let line = format!("{} {attempt} {delivery} {}\n", ctx.id(), ctx.fencing_token());
        let mut file = OpenOptions::new().create(true).append(true).open(&self.file)?;
        file.write_all(line.as_bytes())?;
        self.noted.notify_one();
        Ok(())
    }
}

/// What the process is told, by environment variables.
pub(crate) struct Orders {
    dir: PathBuf,
    point: Option<Point>,
}

const DIR: &str = "DQ_FAULT_DIR";
const POINT: &str = "DQ_FAULT_POINT";

impl Orders {
    /// `None` in the process that runs the trials.
    pub(crate) fn given() -> Option<Self> {
        let dir = std::env::var_os(DIR)?.into();
        let point = std::env::var(POINT).ok();
        Some(Self { dir, point: point.map(|text| text.parse().expect("a known point")) })
    }
}

/// Opens the store of a trial's directory.
pub(crate) async fn connect(dir: &Path) -> dq::Result<Dq> {
    Dq::connect(&format!("sqlite://{}", dir.join("jobs.db").display())).await
}

/// Runs the process to its end, which is to be its own doing if a point is given.
pub(crate) fn spawn(dir: &Path, point: Option<Point>) -> ExitStatus {
    let this = std::env::current_exe().expect("the test knows its own path");
    let mut command = Command::new(this);
    command.current_dir(dir).env(DIR, dir).env_remove(POINT);
    match point {
        Some(Point::Event(n)) => command.env(POINT, n.to_string()),
        Some(point) => command.env(POINT, format!("{point:?}")),
        None => &mut command,
    };
    command.status().expect("the test can be run again")
}

/// Whether it ended by aborting, and not with an error or success.
pub(crate) fn aborted(status: ExitStatus) -> bool {
    status.code().is_none_or(|code| code > 1)
}

/// What handlers noted, in the order of their starts.
pub(crate) fn runs(dir: &Path) -> Vec<Run> {
    let text = std::fs::read_to_string(dir.join("runs")).unwrap_or_default();
    let run = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        Some(Run {
            job: words[0].parse().ok()?,
            attempt: words[1].parse().ok()?,
            delivery: words[2].parse().ok()?,
            token: words[3].parse().ok()?,
        })
    };
    text.lines().map(|line| run(line).expect("a whole line")).collect()
}

/// The process: runs until its queues hold no live job, or until the point.
#[tokio::main]
pub(crate) async fn run(orders: &Orders) -> ExitCode {
    match run_until_empty(orders).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run_until_empty(orders: &Orders) -> dq::Result<()> {
    let dq = connect(&orders.dir).await?;
    let noted = Arc::new(Notify::new());
    let log = Log { file: orders.dir.join("runs"), noted: Arc::clone(&noted) };
    let (point, count) = (orders.point, AtomicU64::new(0));
    let observer = move |event: &Event<'_>| {
        let count = count.fetch_add(1, Ordering::Relaxed) + 1;
        if point.is_some_and(|point| point.is_reached(event, count)) {
            std::process::abort();
        }
    };
    let over = |stats: &QueueStats| {
        stats.stored() == stats.dead || stats.queue.as_str() == bystander::code()
    };
    let empty = async {
        while !dq.stats().await.is_ok_and(|queues| queues.iter().all(over)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let shutdown = async {
        tokio::select! {
            () = empty => {}
            () = noted.notified(), if point.is_some_and(Point::needs_stop) => {}
        }
    };
    let runner = dq.runner().state(log).observer(observer);
    runner.grace(Duration::ZERO).run_until(shutdown).await?;
    dq.close().await
}
