//! Our own program, with the same commands as the peers.

use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime};

use dq::config::QueueSettings;
use dq::{
    DelayHandler, Dq, Flow, HandlerResult, JobContext, Outcome, QueueCode, Rate, Schedule,
    Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::measure::{Result, block_on};

pub(crate) const QUEUE: &str = "JOBS";
const CONCURRENCY: usize = 16;
const BULK: u64 = 1_000;

dq::queue!(Jobs: Job = QUEUE);

#[derive(Debug, Serialize, Deserialize)]
struct Job {
    id: u64,
    /// Milliseconds since 1970.
    due: i64,
}

pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let argument = |n: usize| arguments.get(n).copied().ok_or("an argument is missing");
    let address = argument(1)?;
    if argument(0)? == "limit" {
        block_on(limit(address, argument(2)?.parse()?, argument(3)?.parse()?))
    } else if argument(0)? == "store" {
        let (count, is_bulk) = (argument(2)?.parse()?, argument(3)? == "bulk");
        let (first, rate) = (argument(4)?.parse()?, argument(5)?.parse()?);
        block_on(store(address, count, is_bulk, first, rate))
    } else {
        block_on(work(address, Duration::from_millis(argument(2)?.parse()?)))
    }
}

fn url(address: &str) -> String {
    if address.contains("://") {
        address.to_owned()
    } else if address.contains('/') {
        format!("sqlite://{address}")
    } else {
        format!("redis://{address}/0")
    }
}

/// 0 is no limit.
async fn limit(address: &str, max_running: u32, per_second: u32) -> Result<()> {
    let dq = Dq::connect(&url(address)).await?;
    let mut flow = Flow::UNLIMITED;
    flow.max_running = Some(max_running).filter(|max| *max > 0);
    if per_second > 0 {
        flow.rate = Some(Rate::new(per_second, Duration::from_secs(1))?.burst(per_second)?);
    }
    dq.queue(QUEUE)?.override_limits(flow).await?;
    Ok(dq.close().await?)
}

async fn store(address: &str, count: u64, is_bulk: bool, first: i64, rate: u64) -> Result<()> {
    let dq = Dq::connect(&url(address)).await?;
    let job = |id: u64| -> Schedule {
        if first == 0 {
            let due = Timestamp::from(SystemTime::now()).as_millis();
            return dq.schedule::<Jobs>(Job { id, due });
        }
        let due = first + (id * 1_000).checked_div(rate).unwrap_or(0).cast_signed();
        dq.schedule::<Jobs>(Job { id, due }).at(Timestamp::from_millis(due))
    };
    let started = Instant::now();
    if is_bulk {
        for begin in (0..count).step_by(BULK as usize) {
            let _ = dq.schedule_many((begin..count.min(begin + BULK)).map(job)).await?;
        }
    } else {
        for id in 0..count {
            let _ = job(id).await?;
        }
    }
    println!("{}", started.elapsed().as_secs_f64());
    Ok(dq.close().await?)
}

struct Print {
    sleep: Duration,
}

impl DelayHandler for Print {
    type Payload = Job;

    fn code(&self) -> impl QueueCode {
        QUEUE
    }

    fn settings(&self) -> QueueSettings {
        QueueSettings::new().concurrency(CONCURRENCY)
    }

    async fn handle(&self, _ctx: JobContext, job: Job) -> HandlerResult {
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
        // A tokio timer takes up to a millisecond even for a zero duration.
        if !self.sleep.is_zero() {
            tokio::time::sleep(self.sleep).await;
        }
        let mut output = std::io::stdout().lock();
        writeln!(output, "{} {} {started}", job.id, job.due)?;
        output.flush()?;
        Ok(Outcome::Done)
    }
}

async fn work(address: &str, sleep: Duration) -> Result<()> {
    let dq = Dq::connect(&url(address)).await?;
    let runner = dq.runner().without_linked_handlers().handler(Print { sleep });
    Ok(runner.run_until(std::future::pending::<()>()).await?)
}
