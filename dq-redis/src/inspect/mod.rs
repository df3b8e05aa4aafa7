//! Stats and forecast (`counts.rs`), browse (`browse.rs`) and get (`find.rs`). All scripts requeue
//! jobs whose lease has expired and repair damage by other programs, so these calls need the
//! primary.

mod browse;
mod counts;
mod find;

use bytes::Bytes;
use dq_core::{JobState, JobView, QueueName, Result, Timestamp};

use crate::record::{self, Note, Numbers};
use crate::reply::Reply;

struct StoredJob {
    handle: Bytes,
    /// The due time, or when the lease expires, the job died or the job ended.
    time: i64,
    record: Bytes,
    state: Bytes,
    reason: Bytes,
}

impl StoredJob {
    fn read(reply: &mut Reply, handle: Bytes, time: i64) -> Result<Self> {
        let (record, state, reason) = (reply.bytes()?, reply.bytes()?, reply.bytes()?);
        Ok(Self { handle, time, record, state, reason })
    }

    /// Shows the job, even with a malformed record. `None` if the handle has another length, or an
    /// ended job is malformed.
    fn view(self, queue: &QueueName, job_state: JobState) -> Option<JobView> {
        let Self { handle, record, .. } = &self;
        let time = Timestamp::from_millis(self.time);
        if job_state == JobState::Ended {
            return record::decode_past(queue, handle, record, time);
        }
        let numbers = Numbers::decode(&self.state);
        let note = Note::decode(&self.state);
        let due = match job_state {
            JobState::Running | JobState::Dead => numbers.due,
            _ => self.time,
        };
        let job = record::decode(queue, handle, record, due, numbers)
            .or_else(|| record::undecodable(queue, handle, record, due, numbers))?;
        let mut view = JobView::new(job, job_state);
        view.last_error = note.last_error;
        if job_state == JobState::Running {
            view.leased_since = note.leased_since;
            view.worker = note.worker;
            view.leased_until = Some(time);
        } else if job_state == JobState::Dead {
            view.dead = Some((record::decode_reason(&self.reason), time));
        }
        Some(view)
    }
}
