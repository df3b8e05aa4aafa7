//! How jobs are handed to the script that stores them.

use std::collections::HashSet;

use dq_core::{Due, NewJob};

use crate::handle;
use crate::record;
use crate::redisson::member::{self, Format};
use crate::schedule::due;
use crate::script::Call;

/// What a script gets of jobs beside their handles and due times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    /// The records.
    Record,
    /// What stands for the ids in members of this format, the records up to the payloads, the
    /// payloads.
    Member(Format),
}

/// From a queue that was ever sent a larger record, claims are made with an eye on bytes.
const LARGE: usize = 8192;

impl Packing {
    /// Adds what a script is to know of jobs as a whole, and then the jobs: each thing of all of
    /// them together, as that is how the script hands them on. The server's time is reckoned to be
    /// `now`.
    pub(crate) fn add<'a>(
        self,
        call: &mut Call<'_>,
        jobs: impl ExactSizeIterator<Item = &'a NewJob> + Clone,
        creates: bool,
        now: i64,
    ) {
        let records: Vec<Vec<u8>> = match self {
            Self::Record => jobs.clone().map(|job| record::encode(job, now)).collect(),
            Self::Member(_) => Vec::new(),
        };
        let marks: Vec<Vec<u8>> = match self {
            Self::Record => Vec::new(),
            Self::Member(format) => {
                jobs.clone().map(|job| member::member_id(format, job.id)).collect()
            }
        };
        let mut mode = String::new();
        let mut know = |letter, is_so: bool| mode.extend(is_so.then_some(letter));
        know('?', !creates);
        know('=', has_twins(jobs.clone(), &marks));
        know('+', jobs.clone().any(|job| matches!(job.due, Due::After(_))));
        know('L', records.iter().any(|record| record.len() > LARGE));
        call.arg(mode).arg(jobs.len()).arg(now);
        for job in jobs.clone() {
            call.arg(&handle::handle(job.id)[..]);
        }
        match self {
            Self::Record => {
                for record in records {
                    call.arg(record);
                }
            }
            Self::Member(_) => {
                for mark in marks {
                    call.arg(mark);
                }
                for job in jobs.clone() {
                    let mut header = Vec::new();
                    record::encode_header(job, now, &mut header);
                    call.arg(header);
                }
                for job in jobs.clone() {
                    call.arg(&job.payload[..]);
                }
            }
        }
        for job in jobs.clone() {
            call.arg(due(job.due));
        }
        let keyed =
            || (1_usize..).zip(jobs.clone()).filter_map(|(n, job)| Some((n, job.key.as_ref()?)));
        for (_, key) in keyed() {
            call.arg(key.as_str());
        }
        for (number, _) in keyed() {
            call.arg(number);
        }
    }
}

/// Whether jobs of one call may meet each other: two have one handle, one mark or one key.
fn has_twins<'a>(mut jobs: impl ExactSizeIterator<Item = &'a NewJob>, marks: &[Vec<u8>]) -> bool {
    if jobs.len() < 2 {
        return false;
    }
    let (mut handles, mut keys) = (HashSet::new(), HashSet::new());
    let met = jobs.any(|job| {
        let keyed = job.key.as_ref().is_some_and(|key| !keys.insert(key));
        !handles.insert(handle::handle(job.id)) || keyed
    });
    met || marks.iter().collect::<HashSet<_>>().len() < marks.len()
}
