//! Tests of claims with affinity. The rest is tested by the behaviour suite on the memory backend.

use std::time::Duration;

use super::affinity::Affinity;
use super::state_machine::Machine;
use crate::backend::{Claimed, Want};
use crate::model::{Job, JobId, NewJob, QueueName, Timestamp};

const LEASE: Duration = Duration::from_secs(30);

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

/// A machine with one job for each of these due times.
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

/// The affinity of a claimer that prefers the jobs with these due times.
fn affinity(preferred: &'static [i64]) -> Affinity<impl Fn(&Job) -> bool> {
    Affinity {
        prefers: |job: &Job| preferred.contains(&job.due.as_millis()),
        claim_ahead: Duration::from_millis(5),
        reserved_for: Duration::from_millis(100),
    }
}

/// Claims for a claimer that prefers the jobs with these due times; returns the due times of the
/// claimed jobs, and `next_due`.
fn claim(machine: &mut Machine, preferred: &'static [i64], now: i64) -> (Vec<i64>, Option<i64>) {
    let now = Timestamp::from_millis(now);
    let Claimed { jobs, next_due, now: claimed_at } =
        machine.claim_preferring(&wants(), 10, &affinity(preferred), now);
    for leased in &jobs {
        assert_eq!(leased.leased_until, now.max(leased.job.due) + LEASE);
        assert!(claimed_at >= leased.job.due);
    }
    let dues = jobs.iter().map(|leased| leased.job.due.as_millis()).collect();
    (dues, next_due.map(Timestamp::as_millis))
}

#[test]
fn a_preferred_job_can_be_claimed_ahead_of_its_due_time() {
    let mut machine = machine(&[1_000, 1_000, 1_002, 2_000]);
    let preferred = &[1_000, 1_002, 2_000];
    assert_eq!(claim(&mut machine, preferred, 994), (vec![], Some(1_000)));
    assert_eq!(claim(&mut machine, preferred, 995), (vec![1_000, 1_000], Some(1_002)));
    assert_eq!(claim(&mut machine, preferred, 1_000), (vec![1_002], Some(2_000)));
}

#[test]
fn a_due_job_is_not_claimed_together_with_a_later_one() {
    let mut machine = machine(&[1_000, 1_002]);
    assert_eq!(claim(&mut machine, &[1_000, 1_002], 1_001), (vec![1_000], Some(1_002)));
    assert_eq!(claim(&mut machine, &[1_002], 1_001), (vec![1_002], Some(31_001)));
}

#[test]
fn a_due_job_is_reserved_for_claimers_that_prefer_it() {
    let mut machine = machine(&[1_000]);
    assert_eq!(claim(&mut machine, &[], 999), (vec![], Some(1_000)));
    assert_eq!(claim(&mut machine, &[], 1_000), (vec![], Some(1_100)));
    assert_eq!(claim(&mut machine, &[], 1_099), (vec![], Some(1_100)));
    assert_eq!(claim(&mut machine, &[], 1_100).0, [1_000]);
}

#[test]
fn all_due_reserved_tells_whether_a_claim_would_return_nothing() {
    let mut machine = machine(&[1_000]);
    let mut all_due_reserved = |preferred, now| {
        machine.all_due_reserved(&wants(), &affinity(preferred), Timestamp::from_millis(now))
    };
    assert!(!all_due_reserved(&[], 994), "nothing is due");
    assert!(all_due_reserved(&[], 995) && all_due_reserved(&[], 1_099));
    assert!(!all_due_reserved(&[], 1_100), "the reservation has ended");
    assert!(!all_due_reserved(&[1_000], 995) && !all_due_reserved(&[1_000], 1_050));
}
