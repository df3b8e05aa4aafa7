//! One process of `cargo xtask upgrade`: schedules, cancels and runs jobs, and logs each step.
//!
//! Not a workspace member: it is also built against an older revision, so it uses only what both
//! revisions share. `URL LOG NAME produce` runs until standard input ends; `URL LOG NAME drain`
//! schedules nothing and runs until no live job is left.
//!
//! A log line has an event, a job (for `error` and `failed` the error kind, for `connected` the
//! process name) and a time in Unix milliseconds.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use dq::prelude::*;

/// This process's log. Each line is one write, so that a kill cannot split it.
#[derive(Clone)]
struct Log(Arc<Mutex<File>>);

impl Log {
    fn write(&self, event: &str, job: &str, at: u64) {
        let line = format!("{event} {job} {at}\n");
        self.0.lock().unwrap().write_all(line.as_bytes()).unwrap();
    }

    fn error(&self, call: &str, error: &dq::Error) {
        eprintln!("{call}: {error}");
        self.write_now("error", &format!("{:?}", error.kind()));
    }

    fn write_now(&self, event: &str, job: &str) {
        self.write(event, job, millis(SystemTime::now()));
    }
}

fn millis(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// Every third job fails at first; of the others, every fifth is first postponed.
#[delay_handler(
    "UPGRADE",
    lease = "3s",
    concurrency = 8,
    max_losses = 1000,
    backoff(initial = "300ms", max = "300ms", jitter = 0.0)
)]
async fn work(ctx: JobContext, State(log): State<Log>, job: String) -> HandlerResult {
    log.write_now("start", &job);
    let number: u64 = job.rsplit('-').next().unwrap().parse()?;
    ctx.sleep((number % 7 * 20).millis()).await;
    if number % 3 == 0 && ctx.attempt() == 1 {
        return Err("it fails at first".into());
    }
    if number % 5 == 0 && ctx.deliveries() == 1 {
        return Ok(Outcome::snooze(200.millis()));
    }
    log.write_now("end", &job);
    Ok(Outcome::Done)
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, url, path, name, mode] = &arguments[..] else {
        panic!("usage: URL LOG NAME produce|drain")
    };
    let log = Log(Arc::new(Mutex::new(File::create(path).unwrap())));
    if let Err(error) = run(url, name, mode == "drain", log.clone()).await {
        eprintln!("{name}: {error}");
        log.write_now("failed", &format!("{:?}", error.kind()));
        std::process::exit(1);
    }
}

async fn run(url: &str, name: &str, drain: bool, log: Log) -> dq::Result<()> {
    let dq = Dq::connect(url).await?;
    log.write_now("connected", name);
    let stop = async {
        if drain {
            while live(&dq).await > 0 {
                tokio::time::sleep(100.millis()).await;
            }
        } else {
            let input_ends = tokio::task::spawn_blocking(|| {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
            });
            tokio::select! {
                _ = input_ends => {}
                () = produce(&dq, name, &log) => {}
            }
        }
    };
    dq.runner().state(log.clone()).run_until(stop).await?;
    dq.close().await
}

/// The number of unfinished jobs; 1 if the store does not answer.
async fn live(dq: &Dq) -> u64 {
    match dq.queue_of::<work>().unwrap().stats().await {
        Ok(stats) => stats.live(),
        Err(_) => 1,
    }
}

/// Schedules jobs forever, each with its own key, and cancels every tenth.
async fn produce(dq: &Dq, name: &str, log: &Log) {
    for number in 0_u64.. {
        let job = format!("{name}-{number}");
        let due = SystemTime::now() + (number % 23 * 100).millis();
        log.write("due", &job, millis(due));
        match dq.schedule::<work>(job.clone()).at(due).key(job.clone()).await {
            Ok(scheduled) if scheduled.is_stored() => log.write_now("stored", &job),
            Ok(other) => {
                eprintln!("{name}: {job} was not stored: {other:?}");
                log.write_now("refused", &job);
            }
            Err(error) => log.error(&job, &error),
        }
        if number % 10 == 9 {
            // The process may end during the call.
            log.write_now("perhaps-cancelled", &job);
            match dq.cancel::<work>(job.clone()).await {
                Ok(Cancelled::Cancelled) => log.write_now("cancelled", &job),
                Ok(_) => log.write_now("not-cancelled", &job),
                Err(error) => log.error(&job, &error),
            }
        }
        tokio::time::sleep(5.millis()).await;
    }
}
