//! Who shall take which due job, where some are nearer to it than others.

use std::time::Duration;

use super::index::Entry;
use super::store::Store;
use crate::model::{Job, Timestamp};

/// How many jobs that are left to others are passed over at once.
const PASSED_OVER: usize = 4_096;

/// What a claimer says of the jobs that it could take. It must follow from the state and from what is
/// said with the claim, so that every process that repeats the claim comes to the same.
#[derive(Debug)]
pub struct Nearness<N> {
    /// Whether the claimer is near to a job: has it at hand, say.
    pub near: N,
    /// How long before its due time a job can be had by whoever is near to it, who then waits until it is
    /// due.
    pub ahead: Duration,
    /// How long after its due time a job is left to those who are nearer.
    pub patience: Duration,
}

impl<N: Fn(&Job) -> bool> Nearness<N> {
    /// The oldest `room` of the jobs of a queue that can be had, and when more could be. Jobs that are not
    /// due yet are had only if none is due, and then those of one moment: what is due waits for no other.
    pub(super) fn choose(
        &self,
        store: &mut Store,
        number: usize,
        room: usize,
        now: Timestamp,
    ) -> (Vec<Entry>, Option<i64>) {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let now = now.as_millis();
        let soon = now.saturating_add(millis(self.ahead));
        let (records, waiting) = (&store.records, &mut store.queues[number].waiting);
        let mut chosen: Vec<Entry> = Vec::new();
        let mut last_at = soon;
        let mut next: Option<i64> = None;
        for (looked_at, entry) in waiting.after(i64::MIN, 0).enumerate() {
            let is_near = (self.near)(&records[entry.slot].job);
            let left_until = if is_near || entry.at > now {
                // Whoever is near by then can have it in time.
                entry.at
            } else {
                entry.at.saturating_add(millis(self.patience))
            };
            let can_be_had = (is_near && entry.at <= last_at) || left_until <= now;
            if can_be_had && chosen.len() < room {
                if chosen.is_empty() {
                    last_at = entry.at.max(now);
                }
                chosen.push(entry);
                continue;
            }
            next = Some(next.map_or(left_until, |next| next.min(left_until)));
            // What follows is due later; it may be nearer, but there is an end to looking.
            if can_be_had || entry.at > soon || looked_at >= room.saturating_add(PASSED_OVER) {
                break;
            }
        }
        (chosen, next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Machine;
    use super::*;
    use crate::backend::{Claimed, Want};
    use crate::model::{JobId, NewJob, QueueName};

    const LEASE: Duration = Duration::from_secs(30);

    fn queue() -> QueueName {
        QueueName::new("q").unwrap()
    }

    /// One with a job that is due at each of these times.
    fn machine(dues: &[i64]) -> Machine {
        let mut machine = Machine::default();
        for (number, due) in (1..).zip(dues) {
            let (id, due) = (JobId::from_bytes([number; 16]), Timestamp::from_millis(*due));
            let job = NewJob::new(id, queue(), due, Default::default());
            machine.schedule(job, Timestamp::EPOCH);
        }
        machine
    }

    fn wants() -> [Want; 1] {
        [Want { queue: queue(), max: 10, lease_for: LEASE }]
    }

    /// Near to the jobs that are due at these times.
    fn nearness(near: &'static [i64]) -> Nearness<impl Fn(&Job) -> bool> {
        Nearness {
            near: |job: &Job| near.contains(&job.due.as_millis()),
            ahead: Duration::from_millis(5),
            patience: Duration::from_millis(100),
        }
    }

    /// What is claimed then by one who is near to these.
    fn claim(machine: &mut Machine, near: &'static [i64], now: i64) -> (Vec<i64>, Option<i64>) {
        let now = Timestamp::from_millis(now);
        let Claimed { jobs, next_due, now: seen } =
            machine.claim_near(&wants(), 10, &nearness(near), now);
        for leased in &jobs {
            assert_eq!(leased.leased_until, now.max(leased.job.due) + LEASE);
            assert!(seen >= leased.job.due);
        }
        let dues = jobs.iter().map(|leased| leased.job.due.as_millis()).collect();
        (dues, next_due.map(Timestamp::as_millis))
    }

    #[test]
    fn who_is_near_can_have_the_next_job_a_little_ahead() {
        let mut machine = machine(&[1_000, 1_000, 1_002, 2_000]);
        let near = &[1_000, 1_002, 2_000];
        assert_eq!(claim(&mut machine, near, 994), (vec![], Some(1_000)));
        assert_eq!(claim(&mut machine, near, 995), (vec![1_000, 1_000], Some(1_002)));
        assert_eq!(claim(&mut machine, near, 1_000), (vec![1_002], Some(2_000)));
    }

    #[test]
    fn what_is_due_waits_for_no_other() {
        let mut machine = machine(&[1_000, 1_002]);
        assert_eq!(claim(&mut machine, &[1_000, 1_002], 1_001), (vec![1_000], Some(1_002)));
        assert_eq!(claim(&mut machine, &[1_002], 1_001), (vec![1_002], Some(31_001)));
    }

    #[test]
    fn jobs_are_left_to_those_who_are_nearer_for_a_while() {
        let mut machine = machine(&[1_000]);
        assert_eq!(claim(&mut machine, &[], 999), (vec![], Some(1_000)));
        assert_eq!(claim(&mut machine, &[], 1_000), (vec![], Some(1_100)));
        assert_eq!(claim(&mut machine, &[], 1_099), (vec![], Some(1_100)));
        assert_eq!(claim(&mut machine, &[], 1_100).0, [1_000]);
    }

    #[test]
    fn it_is_told_when_all_is_left_to_others() {
        let mut machine = machine(&[1_000]);
        let mut left =
            |near, now| machine.leaves_all(&wants(), &nearness(near), Timestamp::from_millis(now));
        assert!(!left(&[], 994), "nothing is due");
        assert!(left(&[], 995) && left(&[], 1_099));
        assert!(!left(&[], 1_100) && !left(&[1_000], 995) && !left(&[1_000], 1_050));
    }
}
