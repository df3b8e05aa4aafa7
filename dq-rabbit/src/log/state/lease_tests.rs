//! Leases end by observed time.

use std::time::Duration;

use dq_core::{
    Cancelled, ClaimParams, Claimed, Due, JobId, JobRef, Lease, NewJob, Renewed, Settled,
    Settlement, Timestamp, Verdict, Want,
};

use super::replica::{Applied, Replica};
use super::snapshot::job_parts;
use super::tests::{Log, id, payload, queue};
use crate::entries::MAX_ENTRY_ITEMS;
use crate::log::command::CommandReply;
use crate::log::wire::{self, Command, Entry, SnapshotEntry, StandingLease};

/// One message per command, at its writer's time in milliseconds.
struct Writer {
    replica: Replica,
    log: Log,
}

impl Writer {
    fn new() -> Self {
        Self { replica: Replica::starting_at(0), log: Log::new() }
    }

    fn apply(&mut self, at: i64, command: Command) -> CommandReply {
        let offset = self.log.len() as u64;
        let at = Timestamp::from_millis(at);
        let entry = Entry { producer_id: 1, sequence: offset + 1, at, command };
        self.log.insert(offset, vec![entry.clone()]);
        match self.replica.apply(offset, 0, entry) {
            Applied::Reply(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn schedule(&mut self, number: u8) {
        self.schedule_at(id(number), Due::NOW);
    }

    fn schedule_at(&mut self, id: JobId, due: Due) {
        let job = NewJob::new(id, queue(0), due, "payload".into());
        self.apply(0, Command::Schedule(vec![job.try_into().unwrap()]));
    }

    /// For a second.
    fn claim(&mut self, at: i64, limit: usize) -> Claimed {
        let wants = [Want::new(queue(0), limit, Duration::from_secs(1))];
        let claim = wire::Claim::new(&ClaimParams::new(&wants, limit, "worker"), Vec::new());
        match self.apply(at, Command::Claim(claim)) {
            CommandReply::Claimed(claimed) => claimed,
            other => panic!("{other:?}"),
        }
    }

    /// For a second.
    fn lease(&mut self, at: i64) -> Lease {
        self.claim(at, 1).jobs[0].lease()
    }

    fn cancel(&mut self, at: i64, number: u8) -> Cancelled {
        let job = (&JobRef::new(queue(0), id(number))).into();
        match self.apply(at, Command::Cancel(vec![job])) {
            CommandReply::Cancelled(cancelled) => cancelled[0],
            other => panic!("{other:?}"),
        }
    }

    fn renew(&mut self, at: i64, lease: &Lease) -> Renewed {
        let renewal = dq_core::Renewal::new(lease.clone(), Duration::from_secs(1));
        match self.apply(at, Command::Renew(vec![(&renewal).into()])) {
            CommandReply::Renewed(renewed) => renewed[0],
            other => panic!("{other:?}"),
        }
    }

    fn name_expired(&mut self, elapsed: u64) -> Vec<StandingLease> {
        name_expired(&mut self.replica, elapsed)
    }
}

fn name_expired(replica: &mut Replica, elapsed: u64) -> Vec<StandingLease> {
    let ends = replica.end_expired(Duration::from_millis(elapsed));
    let named = ends.into_iter().map(|command| match command {
        Command::EndLeases(named) => named,
        other => panic!("{other:?}"),
    });
    named.flatten().collect()
}

const HOUR: i64 = 3_600_000;
const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn the_time_of_an_entry_ends_no_lease() {
    let mut log = Writer::new();
    log.schedule(1);
    let lease = log.lease(HOUR);
    for at in [HOUR * 9, -HOUR * 9] {
        log.apply(at, Command::Barrier);
        assert_eq!(log.cancel(at, 1), Cancelled::AlreadyRunning);
        assert!(matches!(log.renew(at, &lease), Renewed::Until(_)));
        assert_eq!(log.replica.machine().stats(&[queue(0)], Timestamp::EPOCH + DAY)[0].running, 1);
    }
    let done = Settlement::new(lease, Verdict::Done);
    let settle = Command::Settle(vec![(&done).try_into().unwrap()]);
    let CommandReply::Settled(settled) = log.apply(HOUR * 9, settle) else { panic!() };
    assert_eq!(settled, [Settled::Accepted]);
    assert!(log.replica.leases().is_empty());
}

#[test]
fn a_named_lease_ends_unless_it_was_renewed_or_granted_again() {
    let mut log = Writer::new();
    log.replica.set_seen(Duration::from_secs(60));
    log.schedule(1);
    let lease = log.lease(0);
    assert!(log.name_expired(60_998).is_empty(), "it lasts a second since it was seen");
    let named = log.name_expired(61_000);
    assert_eq!(named.len(), 1);
    assert!(log.name_expired(99_000).is_empty(), "it is named once");
    // Another process has renewed it, and the name comes twice.
    assert!(matches!(log.renew(0, &lease), Renewed::Until(_)));
    for _ in 0..2 {
        log.apply(HOUR, Command::EndLeases(named.clone()));
        assert_eq!(log.cancel(0, 1), Cancelled::AlreadyRunning);
    }
    let renewed = log.name_expired(61_000);
    log.apply(-HOUR, Command::EndLeases(renewed.clone()));
    assert_eq!(log.renew(0, &lease), Renewed::Lost);
    let job = log.replica.machine().peek(id(1)).unwrap();
    assert_eq!((job.deliveries, job.losses), (1, 1));
    log.lease(300);
    log.apply(0, Command::EndLeases(renewed));
    assert_eq!(log.cancel(0, 1), Cancelled::AlreadyRunning, "another token");
}

#[test]
fn the_lease_of_a_job_that_is_claimed_early_lasts_to_the_end_that_its_holder_knows() {
    let mut log = Writer::new();
    log.schedule_at(id(1), Due::At(Timestamp::from_millis(102)));
    log.replica.set_seen(Duration::from_millis(100));
    let claimed = log.claim(100, 1);
    assert_eq!(claimed.jobs[0].leased_until, Timestamp::from_millis(1_102));
    assert!(log.name_expired(1_100).is_empty());
    assert_eq!(log.name_expired(1_102).len(), 1);
}

#[test]
fn all_expired_leases_are_named_in_entries_of_limited_size() {
    let mut log = Writer::new();
    let leases = MAX_ENTRY_ITEMS as u128 + 1;
    for number in 1..=leases {
        log.schedule_at(JobId::from_bytes(number.to_be_bytes()), Due::NOW);
    }
    assert_eq!(log.claim(0, leases as usize).jobs.len(), leases as usize);
    let ends = log.replica.end_expired(DAY);
    assert_eq!(ends.len(), 2);
    for end in ends {
        log.apply(0, end);
    }
    assert!(log.replica.leases().is_empty());
    assert!(log.replica.end_expired(DAY).is_empty());
}

#[test]
fn a_process_that_starts_waits_for_the_whole_length_of_a_lease() {
    let mut log = Writer::new();
    log.schedule(1);
    let lease = log.lease(0);
    log.renew(0, &lease);
    let begun = log.apply(0, Command::Snapshot(SnapshotEntry::Begin));
    let CommandReply::Done = begun else { panic!("{begun:?}") };
    let begin = log.log.len() as u64 - 1;
    let (mut parts, jobs) = log.replica.snapshot();
    parts.extend(job_parts(jobs, |id, stored| Some(payload(&log.log, id, stored))));
    for entry in SnapshotEntry::all(begin, parts) {
        log.apply(0, Command::Snapshot(entry));
    }
    let mut restarted = Replica::starting_at(begin);
    restarted.set_seen(Duration::from_secs(500));
    for (offset, message) in log.log.range(begin..) {
        restarted.apply(*offset, 0, message[0].clone());
        restarted.restore();
    }
    assert!(restarted.is_ready());
    assert_eq!(restarted.leases(), log.replica.leases());
    let wants = [Want::new(queue(0), 1, Duration::from_secs(1))];
    let next_due = |replica: &mut Replica, elapsed| {
        replica.next_due(&wants, |_| false, Timestamp::EPOCH, Duration::from_millis(elapsed))
    };
    assert_eq!(next_due(&mut restarted, 500_400), Some(Timestamp::from_millis(600)));
    assert!(name_expired(&mut restarted, 500_998).is_empty());
    let named = name_expired(&mut restarted, 501_000);
    assert_eq!(next_due(&mut restarted, 501_000), None);
    log.apply(0, Command::EndLeases(named));
    assert_eq!(log.cancel(0, 1), Cancelled::Cancelled);
}
