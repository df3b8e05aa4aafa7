//! A runner process. It declares the schedule and writes each handler start to a file.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use dq::HistoryLimit;
use dq::config::QueueSettings;
use dq::prelude::*;

const URL: &str = "DQ_RECURRING_URL";
const LOG: &str = "DQ_RECURRING_LOG";

#[derive(Clone)]
pub(crate) struct Log(PathBuf);

/// One line per start: occurrence, job id, delivery number.
#[delay_handler(
    "TICK",
    every = "1s",
    catch_up = "all:1000",
    deadline = "10m",
    lease = "1s",
    // More kills than any trial has, so that no job becomes dead.
    max_losses = 1000
)]
pub(crate) async fn tick(ctx: JobContext, State(log): State<Log>) -> HandlerResult {
    let occurrence = ctx.occurrence().ok_or("not the job of a schedule")?;
    let line = format!("{} {} {}\n", occurrence.as_millis(), ctx.id(), ctx.deliveries());
    let mut file = OpenOptions::new().create(true).append(true).open(&log.0)?;
    // One call, so a kill leaves a line complete or absent.
    file.write_all(line.as_bytes())?;
    Ok(Outcome::Done)
}

pub(crate) struct Options {
    url: String,
    log: PathBuf,
}

impl Options {
    pub(crate) fn new(url: &str, log: PathBuf) -> Self {
        Self { url: url.to_owned(), log }
    }

    /// `None` in the process that runs the trials.
    pub(crate) fn from_env() -> Option<Self> {
        let log = std::env::var_os(LOG)?.into();
        Some(Self { url: std::env::var(URL).ok()?, log })
    }

    /// Starts this program again, as a runner process.
    pub(crate) fn spawn(&self) -> Child {
        let this = std::env::current_exe().expect("the path of this test");
        let mut command = Command::new(this);
        // A process killed during a store call may complain.
        command.env(URL, &self.url).env(LOG, &self.log).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("the process starts")
    }
}

#[tokio::main]
pub(crate) async fn run(options: &Options) -> ExitCode {
    let run = async {
        let history = QueueSettings::new().history(HistoryLimit::default());
        let dq = Dq::builder().url(&options.url).defaults(history).connect().await?;
        let runner = dq.runner().only(["TICK"]).state(Log(options.log.clone()));
        runner.run_until(std::future::pending::<()>()).await
    };
    match run.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
