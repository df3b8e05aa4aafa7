//! The RabbitMQ backend on a private broker of its own, in relation to what that broker can do.
//!
//! # Conditions
//!
//! One RabbitMQ node on the same machine, over loopback, with the settings that are recommended for
//! delayed jobs and two schedulers; quorum queues of one member; payloads of 100 bytes. "Raw" is the
//! client `lapin` alone, publishing persistent messages of 100 bytes without headers through the
//! default exchange to one quorum queue, confirmed. Everything that is compared is measured in turns
//! on the same broker, and the middle of several turns is taken: of the ratios, too, so that a ratio
//! is not that of the two middles. CPU is that of the broker's whole process unless it says client,
//! which is the whole process of the bench. Each measurement has a virtual host of its own.
//!
//! # What the rows mean
//!
//! - **schedule by 1,000**: bulks of 1,000 jobs, one after the other, each waited for; raw has 1,000
//!   messages waiting for their confirmation at any time. `one delay`: all due in an hour, so sixteen of
//!   them share a message; `random`: within a day, so that about a hundred of the thousand messages are
//!   left, over the queues of two levels. Raw cannot put jobs together that are due at different times.
//! - **schedule, one caller**: each job is waited for. Due in an hour is the log and a carrier at
//!   once; due in half a second is the log alone.
//! - **fire side**: what a delayed job costs the broker from publish to acknowledgement on our
//!   ladder and on 28 binary levels as NServiceBus and Celery have them, each built by raw `lapin`,
//!   with the same kind of queues and the same arguments. The number of queues that a job goes through
//!   is the true one; only how long each of them holds it is scaled down, and jobs come at a steady
//!   rate, so that each queue passes on as many a second as it would with true times. Each job is a
//!   message of its own here, as if it had been scheduled alone.
//! - **lateness**: start of the handler after the due time, through the whole runner.
//! - **cancel**: from the call on one process' backend until another's replica has the job no more.
//! - **open**: a process that connects to a log with so many entries, until it can make calls;
//!   everything is declared already.
//! - **idle**: what a runner with 100 queues sends in a minute. The broker's own counters of published
//!   messages, deliveries and acknowledgements are read before and after; and so are the bytes that
//!   each connection received, of which heartbeats are 8 each and all that there shall be.
//! - **whole path**: scheduled in bulks of 1,000, claimed by a runner, handled by nothing, settled.

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
use self::server::Server;
use crate::plan::{Plan, Result, progress};
use crate::table::Figure;

type Measurement = (&'static str, fn(&Plan, &Server) -> Result<Vec<Figure>>);

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

/// What can be asked for one by one.
pub(crate) fn names() -> Vec<&'static str> {
    MEASUREMENTS.iter().map(|measurement| measurement.0).collect()
}

pub(crate) fn run(plan: &Plan) -> Result<Vec<Figure>> {
    let server = Server::start()?;
    let mut figures = Vec::new();
    for (name, measure) in MEASUREMENTS.iter().filter(|(name, _)| plan.includes(name)) {
        progress(format_args!("-- {name}"));
        figures.extend(measure(plan, &server)?);
    }
    Ok(figures)
}

/// What the server says of itself.
pub(crate) fn version() -> Result<String> {
    Ok(Server::start()?.version())
}
