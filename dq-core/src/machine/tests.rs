//! Claims with affinity, and limits on the work of one call. Times are Unix milliseconds; due times
//! name jobs.
//!
//! The behaviour suite tests the rest on the memory backend.

use std::time::Duration;

use super::affinity::Affinity;
use super::state_machine::{Machine, MachineHint};
use crate::backend::{
    BrowseParams, ClaimParams, Claimed, FencingToken, Lease, OperateReport, Operation, Want,
};
use crate::model::{
    Flow, HistoryLimit, HistoryLimits, Job, JobId, JobState, NewJob, QueueName, Timestamp,
};

const LEASE: Duration = Duration::from_secs(30);

fn queue_name() -> QueueName {
    QueueName::new("q").unwrap()
}

fn machine_with_jobs(dues: &[i64]) -> Machine {
    let mut machine = Machine::default();
    for (number, due) in (1..).zip(dues) {
        let (id, due) = (JobId::from_bytes([number; 16]), Timestamp::from_millis(*due));
        let job = NewJob::new(id, queue_name(), due, Default::default());
        assert!(machine.schedule(job, (), Timestamp::EPOCH).is_stored());
    }
    machine
}

fn want_all() -> [Want; 1] {
    [Want::new(queue_name(), 10, LEASE)]
}

fn affinity_to(preferred: &'static [i64]) -> Affinity<impl Fn(&Job) -> bool> {
    Affinity {
        prefers: |job: &Job| preferred.contains(&job.due.as_millis()),
        claim_ahead: Duration::from_millis(5),
        reserved_for: Duration::from_millis(100),
    }
}

/// Returns the claimed jobs' due times, and `next_due`.
fn claim(machine: &mut Machine, preferred: &'static [i64], now: i64) -> (Vec<i64>, Option<i64>) {
    let now = Timestamp::from_millis(now);
    let Claimed { jobs, next_due, now: claimed_at, .. } = machine.claim_preferring(
        ClaimParams::new(&want_all(), 10, "worker"),
        &affinity_to(preferred),
        now,
    );
    for leased in &jobs {
        assert_eq!(leased.leased_until, now.max(leased.job.due) + LEASE);
        assert!(claimed_at >= leased.job.due);
    }
    let dues = jobs.iter().map(|leased| leased.job.due.as_millis()).collect();
    (dues, next_due.map(Timestamp::as_millis))
}

#[test]
fn of_preferred_jobs_only_those_due_first_are_claimed_ahead_and_not_too_early() {
    let mut machine = machine_with_jobs(&[1_000, 1_000, 1_002, 2_000]);
    let preferred = &[1_000, 1_002, 2_000];
    assert_eq!(claim(&mut machine, preferred, 994), (vec![], Some(1_000)), "6 ms ahead");
    assert_eq!(claim(&mut machine, preferred, 995), (vec![1_000, 1_000], Some(1_002)));
    assert_eq!(claim(&mut machine, preferred, 1_000), (vec![1_002], Some(2_000)));
}

#[test]
fn a_claim_returns_due_jobs_or_jobs_ahead_of_their_time_but_not_both() {
    let mut machine = machine_with_jobs(&[1_000, 1_002]);
    assert_eq!(claim(&mut machine, &[1_000, 1_002], 1_001), (vec![1_000], Some(1_002)));
    // The first lease, granted at 1,001, expires before the second.
    assert_eq!(claim(&mut machine, &[1_002], 1_001), (vec![1_002], Some(31_001)));
}

#[test]
fn other_claimers_get_a_due_job_when_its_reservation_has_ended() {
    let mut machine = machine_with_jobs(&[1_000]);
    assert_eq!(claim(&mut machine, &[], 999), (vec![], Some(1_000)), "it is not due");
    assert_eq!(claim(&mut machine, &[], 1_000), (vec![], Some(1_100)));
    assert_eq!(claim(&mut machine, &[], 1_099), (vec![], Some(1_100)));
    assert_eq!(claim(&mut machine, &[], 1_100).0, [1_000]);
}

#[test]
fn all_due_reserved_is_true_while_every_due_job_is_reserved_for_others() {
    let mut machine = machine_with_jobs(&[1_000]);
    let mut all_due_reserved = |preferred, now| {
        let affinity = affinity_to(preferred);
        machine.all_due_reserved(&want_all(), &affinity, Timestamp::from_millis(now))
    };
    assert!(!all_due_reserved(&[], 994), "nothing is due, nor claimable ahead");
    assert!(all_due_reserved(&[], 995) && all_due_reserved(&[], 1_099));
    assert!(!all_due_reserved(&[], 1_100), "the reservation has ended");
    assert!(!all_due_reserved(&[1_000], 995) && !all_due_reserved(&[1_000], 1_050));
}

#[test]
fn a_forecast_may_begin_at_the_earliest_time() {
    let machine = machine_with_jobs(&[1_000]);
    let edges = [i64::MIN, 1_000, i64::MAX].map(Timestamp::from_millis);
    assert_eq!(machine.forecast(&queue_name(), &edges), [0, 1]);
}

#[test]
fn explicit_lease_ends_ignore_the_time_of_calls() {
    let mut machine = machine_with_jobs(&[10]).with_explicit_lease_ends();
    let queues = [queue_name()];
    let claimed =
        machine.claim(ClaimParams::new(&want_all(), 10, "worker"), Timestamp::from_millis(20));
    assert_eq!(claimed.next_due, None, "no time ends the lease");
    let lease = claimed.jobs[0].lease();
    let later = Timestamp::from_millis(20) + LEASE * 2;
    assert_eq!(machine.stats(&queues, later)[0].running, 1);
    let stale = Lease { token: FencingToken(lease.token.0 + 1), ..lease.clone() };
    assert!(!machine.end_lease(&stale));
    assert_eq!(machine.stats(&queues, later)[0].running, 1);
    machine.take_hints();
    assert!(machine.end_lease(&lease) && !machine.end_lease(&lease));
    let hint = MachineHint { queue: queue_name(), due: Timestamp::from_millis(10), worker: None };
    assert_eq!(machine.take_hints(), [hint]);
    let job = machine.peek(claimed.jobs[0].job.id).unwrap();
    assert_eq!((job.losses, job.deliveries), (1, 1));
    assert_eq!(machine.stats(&queues, later)[0].ready, 1);
}

/// Claimers that have ended take no turns from the others.
#[test]
fn a_rate_is_used_beside_claimers_that_have_ended() {
    let mut machine = machine_with_jobs(&[0; 40]);
    let (queue, rate) = (queue_name(), "10/1s".parse().unwrap());
    let flow = Flow::UNLIMITED.rate(rate);
    machine.operate(Operation::DeclareFlow { queue: &queue, flow }, Timestamp::EPOCH);
    let mut claim = |worker: &str, now: i64| {
        let wants = [Want::new(queue_name(), 1, LEASE)];
        machine.claim(ClaimParams::new(&wants, 1, worker), Timestamp::from_millis(now))
    };
    for worker in ["ended 1", "ended 2", "ended 3", "alive"] {
        claim(worker, 0);
    }
    let (mut now, mut started) = (0, 0);
    while now < 3_000 {
        let claimed = claim("alive", now);
        started += claimed.jobs.len();
        now = claimed.next_due.unwrap().as_millis();
    }
    assert!(started >= 25, "{started} of 30");
}

/// Schedules jobs, each pinned for a second after its end, and purges them. Returns the machine,
/// the jobs and the numbers of jobs that each call removed.
fn purged(jobs: u16, history: HistoryLimit) -> (Machine, Vec<NewJob>, Vec<u64>) {
    let mut machine = Machine::new(HistoryLimits::all(history));
    let jobs = (0..jobs).map(|number| {
        let id = JobId::from_bytes([number.to_be_bytes(); 8].concat().try_into().unwrap());
        NewJob::new(id, queue_name(), Timestamp::EPOCH, Default::default())
    });
    let jobs: Vec<_> = jobs.collect();
    for job in &jobs {
        let job = job.clone().remember(Duration::from_secs(1));
        assert!(machine.schedule(job, (), Timestamp::EPOCH).is_stored());
    }
    let mut steps = Vec::new();
    loop {
        let purge = Operation::Purge { queue: &queue_name() };
        let OperateReport { affected, more } = machine.operate(purge, Timestamp::EPOCH);
        steps.push(affected);
        if !more {
            return (machine, jobs, steps);
        }
    }
}

#[test]
fn a_purge_takes_steps_of_a_thousand_jobs() {
    let (machine, _, steps) = purged(2_500, HistoryLimit::OFF);
    assert_eq!(steps, [1_000, 1_000, 500]);
    assert!(machine.is_empty());
}

#[test]
fn pins_and_ended_jobs_that_expire_at_once_are_hidden_and_dropped_by_many_calls() {
    let (mut machine, jobs, _) = purged(1_000, HistoryLimit::new(10_000, Duration::from_secs(1)));
    let later = Timestamp::EPOCH + Duration::from_millis(1_001);
    let shown = |machine: &mut Machine| {
        let queue = queue_name();
        let ended = BrowseParams::new(&queue, JobState::Ended).limit(10_000);
        machine.browse(ended, later).jobs.len()
    };
    let kept = |machine: &Machine| {
        let snapshot = machine.snapshot();
        [snapshot.pins.len(), snapshot.ended.len()]
    };
    let mut before = kept(&machine);
    assert_eq!((before, shown(&mut machine)), ([1_000, 1_000], 0));
    for (ended, job) in (1..).zip(jobs.into_iter().take(100)) {
        assert!(machine.schedule(job, (), later).is_stored(), "neither pinned nor in the history");
        machine.operate(Operation::Purge { queue: &queue_name() }, later);
        assert_eq!(shown(&mut machine), ended);
        let left = kept(&machine);
        assert!(left.iter().zip(before).all(|(left, before)| left + 16 >= before), "{left:?}");
        before = left;
    }
    assert_eq!(before, [0, 100], "no pin, and the jobs that have ended now");
}
