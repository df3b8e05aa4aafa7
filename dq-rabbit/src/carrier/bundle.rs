//! Which jobs travel together.
//!
//! What a message costs the broker, on each queue of its way, hardly depends on its size. So jobs that
//! are sent by one call go together if they are due at nearly the same time: a carrier comes out of the
//! ladder when its first job is due, its receiver holds those that follow soon, and sends the others on.
//! The farther away they are, the more they may lie apart, since they can still be parted then.

use std::time::Duration;

use dq_core::Timestamp;

use super::message::{Carried, Carrier};

/// Jobs of one carrier, at most: as many as a runner has slots unless set. One runner receives them all, and
/// those that it has no slots for are late for a moment until others take them.
const JOBS: usize = 16;
/// Bytes of one carrier, roughly, at most; but one job at least.
const BYTES: usize = 64 * 1024;

/// How far jobs that travel together may always be apart; whoever receives them holds them for so long.
pub(crate) const SPAN: Duration = Duration::from_secs(1);
/// Into how many parts of this the time that is left is cut, so that jobs of one part may go together.
const PARTS: i64 = 16;

/// Puts jobs together, in order of their due times.
pub(super) fn bundle(mut jobs: Vec<Carried>, now: Timestamp) -> Vec<Carrier> {
    jobs.sort_by(|a, b| (&a.queue, a.due).cmp(&(&b.queue, b.due)));
    let mut carriers: Vec<Carrier> = Vec::new();
    let mut weight = 0;
    for job in jobs {
        match carriers.last_mut() {
            Some(carrier)
                if weight + job.weight() <= BYTES
                    && carrier.0.len() < JOBS
                    && *carrier.queue() == job.queue
                    && job.due <= last_of(carrier.due(), now) =>
            {
                weight += job.weight();
                carrier.0.push(job);
            }
            _ => {
                weight = job.weight();
                carriers.push(Carrier(vec![job]));
            }
        }
    }
    carriers
}

/// Until when jobs may be due that travel with one that is due then.
fn last_of(first: Timestamp, now: Timestamp) -> Timestamp {
    let left = first.as_millis().saturating_sub(now.as_millis());
    let apart = Duration::from_millis((left / PARTS).max(0).unsigned_abs());
    first + apart.max(SPAN)
}

#[cfg(test)]
mod tests {
    use dq_core::{Due, Entropy, Headers, NewJob, OnConflict, QueueName};

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const MINUTE: u64 = 60_000;

    fn carried(queue: &str, millis: u64, bytes: usize) -> Carried {
        let due = NOW + Duration::from_millis(millis);
        let job = NewJob {
            id: Entropy::seeded(millis).job_id(NOW),
            queue: QueueName::new(queue).unwrap(),
            key: None,
            on_conflict: OnConflict::Keep,
            due: Due::At(due),
            payload: vec![0; bytes].into(),
            headers: Headers::new(),
            max_attempts: None,
        };
        Carried::new(1, &job, due)
    }

    /// The due times of what travels together, in milliseconds.
    fn together(jobs: Vec<Carried>) -> Vec<Vec<u64>> {
        let millis = |job: &Carried| (job.due.as_millis() - NOW.as_millis()).unsigned_abs();
        bundle(jobs, NOW).iter().map(|carrier| carrier.0.iter().map(millis).collect()).collect()
    }

    #[test]
    fn what_is_due_at_nearly_the_same_time_goes_together() {
        let jobs = [5_000, 3_000, 4_001, 4_000, 3_500].map(|due| carried("mail", due, 10));
        assert_eq!(together(jobs.into()), [vec![3_000, 3_500, 4_000], vec![4_001, 5_000]]);
    }

    #[test]
    fn what_is_far_away_may_lie_farther_apart() {
        let jobs = [160, 165, 170, 171].map(|minutes| carried("mail", minutes * MINUTE, 10));
        let expected = [vec![160, 165, 170], vec![171]];
        assert_eq!(
            together(jobs.into()),
            expected.map(|dues| dues.iter().map(|due| due * MINUTE).collect::<Vec<_>>())
        );
    }

    #[test]
    fn queues_go_apart() {
        let jobs = ["mail", "sms", "mail"].map(|queue| carried(queue, MINUTE, 10));
        assert_eq!(together(jobs.into()), [vec![MINUTE, MINUTE], vec![MINUTE]]);
    }

    #[test]
    fn carriers_are_small() {
        let many = (0..70).map(|_| carried("mail", MINUTE, 10)).collect();
        let sizes: Vec<_> = together(many).iter().map(Vec::len).collect();
        assert_eq!(sizes, [16, 16, 16, 16, 6]);
        let large = [BYTES * 2, 10, 10, BYTES / 2, BYTES / 2 + 1];
        let large = large.map(|bytes| carried("mail", MINUTE, bytes)).into();
        let sizes: Vec<_> = together(large).iter().map(Vec::len).collect();
        assert_eq!(sizes, [1, 3, 1]);
    }

    #[test]
    fn what_is_overdue_is_no_exception() {
        let jobs = [carried("mail", 0, 10), carried("mail", 900, 10)].into();
        let later = NOW + Duration::from_secs(3600);
        assert_eq!(bundle(jobs, later).len(), 1);
    }
}
