//! `dq enqueue`.

use std::io::{self, Read as _};

use dq_core::Headers;
use dq_ops::{ScheduleRequest, ScheduleResult};

use crate::args::EnqueueArgs;
use crate::failure::{CONFLICT, Failure, Result};
use crate::output::Output;
use crate::source::Source;
use crate::text;

pub(super) fn enqueue(args: &EnqueueArgs, source: &Source, output: &mut Output<'_>) -> Result<()> {
    let payload = match args.payload.as_str() {
        "-" => {
            let mut payload = Vec::new();
            io::stdin().read_to_end(&mut payload).map_err(|error| {
                Failure::usage(format!("the payload cannot be read from stdin: {error}"), "")
            })?;
            payload
        }
        payload => payload.as_bytes().to_vec(),
    };
    if Headers::is_json(&args.content_type)
        && let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(&payload)
    {
        return Err(Failure::usage(
            format!("the payload is not JSON: {error}"),
            "write a text as '\"text\"', or give --content-type text/plain",
        ));
    }
    let mut request = ScheduleRequest::new(payload);
    request.content_type.clone_from(&args.content_type);
    request.due = args.due;
    request.key.clone_from(&args.key);
    request.on_conflict = args.on_conflict;
    request.on_running = args.on_running;
    for (name, value) in &args.headers {
        if request.headers.insert(name.clone(), value.clone()).is_some() {
            return Err(Failure::usage(
                format!("the header {name} is given twice"),
                "give it once",
            ));
        }
    }
    request.max_attempts = args.max_attempts;
    request.idempotency_key.clone_from(&args.idempotency_key);
    request.remember.clone_from(&args.remember);
    let scheduled = source.schedule(&args.queue, &request)?;
    output.either(&scheduled, || {
        let (id, due) = (scheduled.id, scheduled.due);
        let queue = text::clean(args.queue.as_str());
        match scheduled.result {
            ScheduleResult::Created => format!("scheduled {queue}/{id}, due {due}\n"),
            ScheduleResult::Replaced => {
                format!("scheduled {queue}/{id} instead of the job that had its key, due {due}\n")
            }
            ScheduleResult::AlreadyRunning => {
                format!("not scheduled: {queue}/{id} has the key and is running\n")
            }
            ScheduleResult::Ended => {
                format!("not scheduled: {queue}/{id} of the same request has ended\n")
            }
            _ => format!("not scheduled: {queue}/{id} has the key, due {due}\n"),
        }
    })?;
    match scheduled.result {
        // A repeated request whose job has ended.
        ScheduleResult::Ended => Ok(()),
        _ if scheduled.is_stored() => Ok(()),
        _ => Err(Failure::Reported(CONFLICT)),
    }
}
