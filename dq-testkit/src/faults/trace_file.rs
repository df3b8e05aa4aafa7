//! A trace that survives the process, as lines of JSON in a file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use dq_core::Timestamp;
use dq_core::sync::lock;
use serde::{Deserialize, Serialize};

use crate::trace::{Interval, ObservedCall, Trace, TraceEvent};

/// A line of the file. A call and its return have one number. Times are nanoseconds since 1970.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Line<Calls> {
    /// Without answers.
    Call {
        number: u64,
        at: u64,
        calls: Calls,
    },
    Return {
        number: u64,
        at: u64,
        calls: Calls,
    },
}

pub(super) fn nanos() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn millis(nanos: u64) -> Timestamp {
    Timestamp::from_millis(i64::try_from(nanos / 1_000_000).unwrap_or(i64::MAX))
}

/// Writes a line by one call, which a kill cannot split.
pub(super) fn write(file: &Mutex<File>, line: &Line<&[ObservedCall]>) {
    let mut text = serde_json::to_vec(line).expect("a line is JSON");
    text.push(b'\n');
    // An unrecorded call is no evidence, so stop here.
    lock(file).write_all(&text).expect("the trace can be written");
}

/// When a claim's leases begin, for the checker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseBegin {
    /// At the time in the answer: the store reads its clock when it grants the leases.
    Answered,
    /// When the call returns. A store that decides by its log answers with the time at which the
    /// runner made the claim. After a broken connection, the claim may reach the log only when an
    /// earlier lease has expired.
    Returned,
}

/// Reads the trace from all `jsonl` files in a directory.
///
/// Ignores an incomplete last line.
///
/// # Errors
/// If a file cannot be read, and `InvalidData` for a line that no [`Recorder`](super::Recorder)
/// wrote.
pub fn read_traces(directory: impl AsRef<Path>, begin: LeaseBegin) -> io::Result<Trace> {
    let mut events = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let text = fs::read_to_string(&path)?;
            let complete = text.rfind('\n').map_or("", |end| &text[..end]);
            read_file(complete, begin, &mut events).map_err(|problem| {
                let what = format!("{}: {problem}", path.display());
                io::Error::new(io::ErrorKind::InvalidData, what)
            })?;
        }
    }
    Ok(Trace::new(events))
}

fn read_file(text: &str, begin: LeaseBegin, events: &mut Vec<TraceEvent>) -> Result<(), String> {
    let mut open = BTreeMap::new();
    let mut add = |invoked, returned, calls: Vec<ObservedCall>| {
        let (at, returned_at) = (millis(invoked), millis(returned));
        let interval = Interval { invoked, returned, at, returned_at };
        events.extend(calls.into_iter().map(|call| TraceEvent { interval, call }));
    };
    for line in text.lines() {
        let parsed: Line<Vec<ObservedCall>> =
            serde_json::from_str(line).map_err(|error| format!("{error} in {line:?}"))?;
        match parsed {
            Line::Call { number, at, calls } => {
                open.insert(number, (at, calls));
            }
            Line::Return { number, at, mut calls } => {
                let Some((invoked, _)) = open.remove(&number) else {
                    return Err(format!("an answer to no call: {line:?}"));
                };
                for call in &mut calls {
                    if let ObservedCall::Claim { now, .. } = call
                        && begin == LeaseBegin::Returned
                    {
                        *now = (*now).max(millis(at));
                    }
                }
                add(invoked, at, calls);
            }
        }
    }
    // Unanswered calls may take effect at any later time.
    for (invoked, calls) in open.into_values() {
        add(invoked, u64::MAX, calls);
    }
    Ok(())
}
