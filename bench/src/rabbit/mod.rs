//! The RabbitMQ backend on a private broker, compared to what that broker can do.
//!
//! # Conditions
//!
//! One RabbitMQ node on the same machine, over loopback, with the settings that are recommended for
//! delayed jobs and two schedulers; quorum queues of one member; payloads of 100 bytes. "Raw" is
//! the client `lapin` alone, which publishes persistent messages of 100 bytes without headers
//! through the default exchange to one quorum queue, with publisher confirms. Compared figures are
//! measured in turns on the same broker. Figures are medians of several turns; a ratio is the
//! median of the ratios of the turns. CPU is that of the broker's whole process; client CPU is that
//! of the bench's whole process. Each measurement has its own virtual host.
//!
//! # What the rows mean
//!
//! - **schedule by 1,000**: consecutive bulks of 1,000 jobs; raw has up to 1,000 unconfirmed
//!   messages. `one delay`: all jobs are due in an hour, so sixteen of them share a message.
//!   `random`: within a day, so about a hundred messages per bulk remain, over the queues of two
//!   levels. Raw cannot batch jobs that are due at different times.
//! - **schedule, one caller**: the caller waits for each job. A job that is due in an hour is
//!   written to the log and published; one that is due in half a second is only written to the log.
//! - **claim and settle by 100**: jobs that are due at once, which have no messages: the path through
//!   the log only.
//! - **fire side**: CPU time of the broker for a delayed job, from publish to acknowledgement, on
//!   the backend's ladder and on the 28 binary levels of NServiceBus and Celery, both built with
//!   raw `lapin`, with the same kind of queues and the same arguments. A job passes the true number
//!   of queues; only the time that each queue holds it is scaled down. Jobs come at a steady rate,
//!   so each queue passes on as many per second as with true times. Each job is one message, as if
//!   it were scheduled alone.
//! - **lateness**: time from the due time to the start of the handler, through the whole runner.
//! - **cancel**: time from the call on one process's backend until another's replica has removed
//!   the job.
//! - **open**: time in which a process connects to a log with many entries, until it can make
//!   calls; all queues and exchanges are declared already.
//! - **idle**: traffic per minute of a runner with 100 queues: the broker's counters of published
//!   messages, deliveries and acknowledgements, and the bytes received on each connection beyond
//!   its heartbeats of 8 bytes.
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

/// Names for `--only rabbit/NAME`.
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

/// Version of RabbitMQ and Erlang.
pub(crate) fn version() -> Result<String> {
    Ok(RabbitServer::start()?.version())
}
