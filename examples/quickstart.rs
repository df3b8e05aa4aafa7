//! Jobs that fire a few seconds from now, and survive `kill -9`.
//!
//! ```sh
//! cargo run --example quickstart
//! ```
//!
//! Kill it at any moment, with any signal, and start it again: it first finishes what was pending.

use std::ffi::OsStr;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use dq::prelude::*;
use dq::{ErrorKind, QueueHandle};
use serde::{Deserialize, Serialize};

const USAGE: &str = "\
Schedules some jobs a few seconds ahead and runs them when they are due.

usage: quickstart [--jobs N] [--within SECONDS] [--db FILE | --backend URL]

  --jobs N          how many jobs, 1 to 10000 (default: 5)
  --within SECONDS  when the last of them is due, 0 to 3600 (default: 5)
  --db FILE         the SQLite file to keep them in (default: quickstart.db)
  --backend URL     another store, such as memory: or sqlite:///var/lib/app/jobs.db
  --help            this text";

#[derive(Serialize, Deserialize)]
struct Greeting {
    number: u32,
}

/// The work itself. A short lease, so that a job whose runner was killed soon runs again.
#[delay_handler("QUICKSTART", lease = "2s")]
async fn greet(ctx: JobContext, greeting: Greeting) {
    let again = if ctx.deliveries() > 1 { " (again: it was running when killed)" } else { "" };
    println!("  job {:<4} fired {} late{again}", greeting.number, brief(ctx.lateness()));
}

async fn run(options: &Options) -> dq::Result<()> {
    let dq = Dq::connect(&options.url).await?;
    let queue = dq.queue_of::<greet>()?;

    let (pending, running) = unfinished(&queue).await?;
    if pending + running > 0 {
        println!("found {} pending from before", jobs(pending + running));
        if running > 0 {
            println!("  {running} of them already running: again once the lease ends, within 2 s");
        }
    } else {
        let round = (1..=options.jobs).map(|number| {
            let delay = options.within.mul_f64(f64::from(number) / f64::from(options.jobs));
            dq.schedule::<greet>(Greeting { number }).after(delay)
        });
        let scheduled = dq.schedule_many(round).await?;
        let count = jobs(scheduled.len() as u64);
        println!("scheduled {count}, the last in {}", brief(options.within));
    }

    let finished = async {
        // Asks the store rather than counting here: another process may share the work.
        while unfinished(&queue).await.is_ok_and(|counts| counts != (0, 0)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let shutdown = async {
        tokio::select! {
            () = finished => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    dq.runner().run_until(shutdown).await?;

    match unfinished(&queue).await? {
        (0, 0) => println!("all jobs have fired"),
        (pending, running) => println!("{} left for the next start", jobs(pending + running)),
    }
    dq.close().await
}

/// How many jobs wait, for their time or a free place, and how many a runner holds.
async fn unfinished(queue: &QueueHandle) -> dq::Result<(u64, u64)> {
    let stats = queue.stats().await?;
    Ok((stats.scheduled + stats.ready, stats.running))
}

struct Options {
    jobs: u32,
    within: Duration,
    url: String,
}

impl Options {
    /// `None` when only help was wanted.
    fn parse() -> Result<Option<Self>, lexopt::Error> {
        use lexopt::prelude::{Long, Short, ValueExt};
        let mut parser = lexopt::Parser::from_env();
        let (mut jobs, mut within, mut url) = (5, 5.0, None);
        while let Some(option) = parser.next()? {
            match option {
                Long("jobs") => jobs = number("--jobs", &parser.value()?)?,
                Long("within") => within = number("--within", &parser.value()?)?,
                Long("db" | "backend") if url.is_some() => {
                    return Err("the store is named twice: give one --db or one --backend".into());
                }
                Long("db") => url = Some(format!("sqlite://{}", parser.value()?.string()?)),
                Long("backend") => url = Some(parser.value()?.string()?),
                Long("help") | Short('h') => return Ok(None),
                other => return Err(other.unexpected()),
            }
        }
        if !(1..=10_000).contains(&jobs) {
            return Err(format!("--jobs is {jobs}; it must be 1 to 10000").into());
        }
        if !(0.0..=3600.0).contains(&within) {
            return Err(format!("--within is {within}; it must be 0 to 3600 seconds").into());
        }
        let url = url.unwrap_or_else(|| "sqlite://quickstart.db".to_owned());
        Ok(Some(Self { jobs, within: Duration::from_secs_f64(within), url }))
    }
}

fn number<T: FromStr>(option: &str, text: &OsStr) -> Result<T, lexopt::Error> {
    let number = text.to_str().and_then(|text| text.parse().ok());
    number.ok_or_else(|| format!("{option} wants a number, not {text:?}").into())
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(refusal) => {
            eprintln!("quickstart: {refusal}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {error}");
            ExitCode::from(if error.kind() == ErrorKind::Config { 2 } else { 1 })
        }
    }
}

fn jobs(count: u64) -> String {
    if count == 1 { "1 job".to_owned() } else { format!("{count} jobs") }
}

/// `3 ms`, `1.5 s`.
fn brief(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}
