//! How jobs are handed to the script that stores them.

use std::collections::HashSet;

use dq_core::NewJob;

use crate::handle;
use crate::record;
use crate::redisson::Format;
use crate::redisson::member;
use crate::schedule::due;
use crate::script::Call;

/// What a script gets of a job beside its handle and due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    /// The record without its time.
    Record,
    /// What stands for the id in a member of this format, the record up to the payload, the payload.
    Member(Format),
}

impl Packing {
    /// Adds a job to the arguments.
    pub(crate) fn add(self, call: &mut Call<'_>, job: &NewJob) {
        call.arg(&handle::handle(job.id)[..]).arg(due(job.due));
        match self {
            Self::Record => {
                call.arg(record::encode(job));
            }
            Self::Member(format) => {
                let mut header = Vec::new();
                record::encode_header(job, &mut header);
                call.arg(member::mark(format, job.id)).arg(header).arg(&job.payload[..]);
            }
        }
    }

    /// Whether jobs of one call may meet each other: two have one handle, one mark or one key.
    pub(crate) fn has_twins<'a>(self, jobs: impl ExactSizeIterator<Item = &'a NewJob>) -> bool {
        if jobs.len() < 2 {
            return false;
        }
        let (mut handles, mut marks, mut keys) = (HashSet::new(), HashSet::new(), HashSet::new());
        let mut jobs = jobs;
        jobs.any(|job| {
            let marked = match self {
                Self::Record => false,
                Self::Member(format) => !marks.insert(member::mark(format, job.id)),
            };
            let keyed = job.key.as_ref().is_some_and(|key| !keys.insert(key));
            !handles.insert(handle::handle(job.id)) || marked || keyed
        })
    }
}
