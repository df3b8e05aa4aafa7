use std::collections::BTreeMap;
use std::io::{self, Read as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dq_core::Headers;
use dq_ops::ScheduleResult;
use serde_json::json;

use crate::args::EnqueueArgs;
use crate::failure::{CONFLICT, Failure, Result};
use crate::output::Output;
use crate::source::{Source, due_text};
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
    let mut headers = BTreeMap::new();
    for (name, value) in &args.headers {
        if headers.insert(name, value).is_some() {
            let message = format!("the header {name} is given twice");
            return Err(Failure::usage(message, "give it once"));
        }
    }
    let body = json!({
        // Base64 keeps the payload byte for byte.
        "payload_base64": STANDARD.encode(&payload),
        "content_type": args.content_type,
        "due": due_text(args.due),
        "key": args.key,
        "group": args.group,
        "on_conflict": args.on_conflict,
        "on_running": args.on_running,
        "headers": headers,
        "max_attempts": args.max_attempts,
        "remember": args.remember,
    });
    let scheduled = source.schedule(&args.queue, body, args.idempotency_key.as_deref())?;
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
        // A repeated request; its job has ended.
        ScheduleResult::Ended => Ok(()),
        _ if scheduled.is_stored() => Ok(()),
        _ => Err(Failure::Reported(CONFLICT)),
    }
}
