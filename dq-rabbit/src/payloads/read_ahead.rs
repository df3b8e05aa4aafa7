//! Reads payloads of jobs that are due soon from the log when their messages do not arrive.
//!
//! A claim would have to look for each payload in the log, which takes longer the larger the log
//! is. So runners read the next ten seconds' payloads in one pass: always without a ladder, else
//! for a minute after a job was claimed before its message came.

use std::sync::Weak;
use std::time::Duration;

use dq_core::{JobId, QueueName, Result, Timestamp};

use crate::engine::Engine;
use crate::log::{PayloadRef, ReadPurpose, ReplicaMachine};
use crate::payloads::buffer::{HORIZON, MAX_OVERDUE};

const INTERVAL: Duration = Duration::from_secs(1);
/// Jobs that one pass reads.
const MAX_JOBS: usize = 20_000;
pub(crate) async fn run(engine: Weak<Engine>) {
    loop {
        let Some(engine) = engine.upgrade() else { return };
        if engine.misses.are_expected(engine.log.now())
            && let Err(error) = engine.read_due_soon().await
        {
            tracing::debug!(%error, "payloads cannot be read ahead now");
        }
        let pause = engine.log.clock().sleep(INTERVAL);
        tokio::select! {
            () = pause => {}
            () = engine.misses.noted() => {
                // Many misses need only one pass. The pause protects the broker, so it does not
                // follow the clock of the jobs.
                tokio::time::sleep(INTERVAL / 10).await;
            }
        }
    }
}

impl Engine {
    async fn read_due_soon(&self) -> Result<()> {
        let queues = self.payloads.served();
        let now = self.log.now();
        let room = self.payloads.room_for_log(now + HORIZON);
        let jobs = self.log.peek(|replica| {
            if !replica.is_ready() {
                return Vec::new();
            }
            let is_buffered = |id| self.payloads.contains(id);
            due_soon(replica.machine(), &queues, now, room, is_buffered)
        });
        self.log.read_payloads(jobs, ReadPurpose::Run).await.map(drop)
    }
}

/// Lists jobs that are due soon and not in the buffer, with payloads up to `room` bytes. Each queue
/// with such jobs gets an equal part.
fn due_soon(
    machine: &mut ReplicaMachine,
    queues: &[QueueName],
    now: Timestamp,
    mut room: usize,
    is_buffered: impl Fn(JobId) -> bool,
) -> Vec<(JobId, PayloadRef)> {
    let length = |(_, stored): &(JobId, PayloadRef)| stored.length as usize;
    let (after, until) = (now - MAX_OVERDUE, now + HORIZON);
    let mut queues: Vec<_> = queues.iter().collect();
    queues
        .retain(|queue| machine.waiting(queue, after, until).any(|(job, _)| !is_buffered(job.id)));
    let mut jobs = Vec::new();
    for (queue, queues_left) in queues.iter().zip((1..=queues.len()).rev()) {
        let max_jobs = (MAX_JOBS - jobs.len()) / queues_left;
        let mut part = room / queues_left;
        let fits = |job: &(JobId, PayloadRef)| {
            let left = part.checked_sub(length(job));
            part = left.unwrap_or(0);
            left.is_some()
        };
        let waiting = machine.waiting(queue, after, until);
        let waiting = waiting.map(|(job, stored)| (job.id, stored.payload));
        let unread = waiting.filter(|(id, _)| !is_buffered(*id));
        let first = jobs.len();
        jobs.extend(unread.take(max_jobs).take_while(fits));
        room -= jobs[first..].iter().map(length).sum::<usize>();
    }
    jobs
}

#[cfg(test)]
mod tests {
    use dq_core::{Due, HistoryLimit, HistoryLimits, NewJob, Operation};
    use dq_testkit::fixture::queue;

    use super::*;
    use crate::log::StoredPayload;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000_000);
    const LENGTH: usize = 100;

    #[test]
    fn jobs_that_nobody_can_claim_do_not_take_the_place_of_others() {
        let mut machine = ReplicaMachine::new(HistoryLimits::all(HistoryLimit::OFF));
        let mut schedule = |name: &str, number: u8, due: Timestamp| {
            let mut stored = StoredPayload::default();
            stored.payload.length = LENGTH as u32;
            let id = JobId::from_bytes([number; 16]);
            let job = NewJob::new(id, queue(name), Due::At(due), "".into());
            let _ = machine.schedule(job, stored, NOW);
        };
        for number in 1..=9 {
            schedule("busy", number, NOW);
        }
        schedule("quiet", 10, NOW + HORIZON);
        schedule("quiet", 11, NOW - MAX_OVERDUE);
        schedule("quiet", 12, NOW + HORIZON * 2);
        schedule("paused", 13, NOW);
        machine.operate(Operation::Pause { queue: &queue("paused") }, NOW);
        let queues = ["paused", "busy", "quiet", "empty"].map(queue);
        let mut due = |room, first| {
            let jobs = due_soon(&mut machine, &queues, NOW, room, |id| id.to_bytes()[0] < first);
            jobs.iter().map(|(id, _)| id.to_bytes()[0]).collect::<Vec<_>>()
        };
        assert_eq!(due(4 * LENGTH, 0), [1, 2, 10]);
        assert_eq!(due(4 * LENGTH, 4), [4, 5, 10], "others are buffered");
        assert_eq!(due(4 * LENGTH, 10), [10], "the busy queue needs nothing");
        assert_eq!(due(20 * LENGTH, 0), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    }
}
