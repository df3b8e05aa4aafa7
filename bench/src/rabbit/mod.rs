//! The RabbitMQ backend on a private broker, compared to what the broker itself can do.
//!
//! # Conditions
//!
//! One RabbitMQ node on the same machine, over loopback, with the settings recommended for delayed
//! jobs and two schedulers; single-member quorum queues; 100-byte payloads. "Raw" is the client
//! `lapin` alone: it publishes persistent 100-byte messages without headers through the default
//! exchange to one quorum queue, with publisher confirms. Compared figures take turns on the same
//! broker. Figures are medians over several turns; a ratio is the median of the per-turn ratios.
//! CPU covers the whole broker process, client CPU the whole bench process. Each measurement has
//! its own virtual host.
//!
//! # What the rows mean
//!
//! - **schedule by 1,000**: consecutive bulks of 1,000 jobs; raw has up to 1,000 unconfirmed
//!   messages. `one delay`: all jobs are due in an hour, so sixteen share a message. `random`: jobs
//!   are due within a day, so about a hundred messages per bulk remain, over the queues of two
//!   levels. Raw cannot batch jobs with different due times.
//! - **schedule, one caller**: the caller waits for each job. The backend writes a job due in an
//!   hour to the log and publishes it; it writes a job due in half a second only to the log.
//! - **claim and settle by 100**: jobs due at once, which have no messages: only the path through
//!   the log.
//! - **fire side**: broker CPU time per delayed job, from publish to ack, on the backend's ladder
//!   and on the 28 binary levels of NServiceBus and Celery. Both are built with raw `lapin` and use
//!   the same queue type and arguments. A job passes the real number of queues; only the hold times
//!   are scaled down. Jobs arrive at a steady rate, so each queue passes on as many per second as
//!   with real times. Each job is one message, as if scheduled alone.
//! - **lateness**: from the due time to the handler's start, through the whole runner.
//! - **cancel**: from the call on one process's backend until another's replica has removed the
//!   job.
//! - **open**: from connecting to a log with many entries until the process can make calls. All
//!   queues and exchanges are already declared.
//! - **idle**: traffic per minute of a runner with 100 queues: the broker's counters for published,
//!   delivered and acknowledged messages, and the bytes received per connection beyond its 8-byte
//!   heartbeats.
//! - **whole path**: schedule in bulks of 1,000, claim by a runner, an empty handler, settle.

mod cancel;
mod drain;
mod fire;
mod idle;
mod ladder;
mod late;
mod open;
mod path;
mod raw;
mod schedule;
mod server;
mod single;
mod store;

pub(crate) use self::open::{READER, reader};
use self::server::RabbitServer;
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;

type Measurement = (&'static str, fn(&Plan, &RabbitServer) -> Result<Vec<Figure>>);

const MEASUREMENTS: [Measurement; 9] = [
    ("schedule", schedule::measure),
    ("single", single::measure),
    ("fire", fire::measure),
    ("late", late::measure),
    ("cancel", cancel::measure),
    ("open", open::measure),
    ("idle", idle::measure),
    ("drain", drain::measure),
    ("path", path::measure),
];

pub(crate) fn names() -> Vec<&'static str> {
    MEASUREMENTS.iter().map(|measurement| measurement.0).collect()
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Figure>> {
    let server = RabbitServer::start()?;
    let mut figures = Vec::new();
    for (name, measure) in MEASUREMENTS.iter().filter(|(name, _)| plan.includes(name)) {
        progress(format_args!("-- {name}"));
        figures.extend(measure(plan, &server)?);
    }
    Ok(figures)
}

pub(crate) fn version() -> Result<String> {
    Ok(RabbitServer::start()?.version())
}
