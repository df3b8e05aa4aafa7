//! Groups jobs into messages.
//!
//! A message costs nearly the same whatever its size, again in each ladder queue. So a call's jobs
//! share a message if they are due at nearly the same time. The consumer holds jobs that are due
//! soon and publishes the others again.

use std::time::Duration;

use dq_core::Timestamp;

use super::job_message::{JobMessage, PublishedJob};

/// The default concurrency of a queue.
const MAX_JOBS: usize = 16;
/// Approximate, for a message with several jobs.
const MAX_BYTES: usize = 64 * 1024;

/// How far apart the due times in a message may be after a short delay. The consumer keeps the
/// later jobs for this much longer.
pub(crate) const BASE_SPREAD: Duration = Duration::from_secs(1);
/// After a long delay, due times may differ by this part of it.
const SPREAD_DIVISOR: i64 = 16;

/// Groups each queue's jobs, in order of their due times.
pub(super) fn batch(mut jobs: Vec<PublishedJob>, now: Timestamp) -> Vec<JobMessage> {
    jobs.sort_by(|a, b| (&a.queue, a.due).cmp(&(&b.queue, b.due)));
    let mut messages: Vec<JobMessage> = Vec::new();
    let mut bytes = 0;
    for job in jobs {
        match messages.last_mut() {
            Some(message)
                if bytes + job.approx_size() <= MAX_BYTES
                    && message.0.len() < MAX_JOBS
                    && *message.queue() == job.queue
                    && job.due <= latest_due(message.due(), now) =>
            {
                bytes += job.approx_size();
                message.0.push(job);
            }
            _ => {
                bytes = job.approx_size();
                messages.push(JobMessage(vec![job]));
            }
        }
    }
    messages
}

fn latest_due(first: Timestamp, now: Timestamp) -> Timestamp {
    let delay = first.as_millis().saturating_sub(now.as_millis());
    let spread = Duration::from_millis((delay / SPREAD_DIVISOR).max(0).unsigned_abs());
    first + spread.max(BASE_SPREAD)
}

#[cfg(test)]
mod tests {
    use dq_core::{Entropy, NewJob, QueueName};

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const MINUTE: u64 = 60_000;

    fn job(queue: &str, millis: u64, bytes: usize) -> PublishedJob {
        let due = NOW + Duration::from_millis(millis);
        let id = Entropy::seeded(millis).job_id(NOW);
        let job = NewJob::new(id, QueueName::new(queue).unwrap(), due, vec![0; bytes].into());
        PublishedJob::new(1, &job, due)
    }

    /// The delays of each message's jobs in milliseconds.
    fn batched<const N: usize>(jobs: [PublishedJob; N]) -> Vec<Vec<u64>> {
        let millis = |job: &PublishedJob| (job.due.as_millis() - NOW.as_millis()).unsigned_abs();
        let messages = batch(jobs.into(), NOW);
        messages.iter().map(|message| message.0.iter().map(millis).collect()).collect()
    }

    #[test]
    fn jobs_of_a_queue_that_are_due_at_nearly_the_same_time_share_a_message() {
        let seconds = [5_000, 3_000, 4_001, 4_000, 3_500].map(|due| job("mail", due, 10));
        assert_eq!(batched(seconds), [vec![3_000, 3_500, 4_000], vec![4_001, 5_000]]);
        let hours = [9_600_000, 9_900_000, 10_200_000, 10_260_000].map(|due| job("mail", due, 10));
        let expected = [vec![9_600_000, 9_900_000, 10_200_000], vec![10_260_000]];
        assert_eq!(batched(hours), expected, "the spread grows with the delay");
        let queues = ["mail", "sms", "mail"].map(|queue| job(queue, MINUTE, 10));
        assert_eq!(batched(queues), [vec![MINUTE, MINUTE], vec![MINUTE]]);
    }

    #[test]
    fn messages_are_limited_in_jobs_and_bytes() {
        let sizes = |messages: Vec<Vec<u64>>| messages.iter().map(Vec::len).collect::<Vec<_>>();
        let many = std::array::from_fn::<_, 70, _>(|_| job("mail", MINUTE, 10));
        assert_eq!(sizes(batched(many)), [16, 16, 16, 16, 6]);
        let large = [MAX_BYTES * 2, 10, 10, MAX_BYTES / 2, MAX_BYTES / 2 + 1];
        let large = large.map(|bytes| job("mail", MINUTE, bytes));
        assert_eq!(sizes(batched(large)), [1, 3, 1]);
    }
}
