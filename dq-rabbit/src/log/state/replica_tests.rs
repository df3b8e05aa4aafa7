//! A replica ends leases by observed time, and refuses jobs that the log has no room for.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Cancelled, ClaimParams, Claimed, DeadKind, DeadReason, Due, JobId, JobKey, JobRef, Lease,
    NewJob, OnConflict, Renewed, Scheduled, Settled, Settlement, Timestamp, Verdict, Want,
};

use super::replica::Replica;
use super::test_log::{TestLog, id, queue};
use crate::log::reply::CommandReply;
use crate::log::wire::{self, Command, Entry, StandingLease};

impl TestLog {
    /// `None` if the log is full.
    fn schedule(&mut self, job: NewJob) -> Option<Scheduled> {
        let reply = self.call(Command::Schedule(vec![job.into()]));
        match reply {
            CommandReply::Full => None,
            reply => Vec::try_from(reply).unwrap().pop(),
        }
    }

    fn fill(&mut self, payload_bytes: usize) -> u32 {
        (0..).find(|number| self.schedule(job(*number, payload_bytes)).is_none()).unwrap()
    }

    fn claim(&mut self, at: i64, limit: usize) -> Claimed {
        let wants = [Want::new(queue(0), limit, Duration::from_secs(1))];
        let claim = wire::Claim::new(&ClaimParams::new(&wants, limit, "worker"), Vec::new());
        self.call_at(at, Command::Claim(claim)).try_into().unwrap()
    }

    fn lease(&mut self, at: i64) -> Lease {
        self.claim(at, 1).jobs[0].lease()
    }

    fn cancel(&mut self, at: i64, id: JobId) -> Cancelled {
        let job = (&JobRef::new(queue(0), id)).into();
        Vec::try_from(self.call_at(at, Command::Cancel(vec![job]))).unwrap()[0]
    }

    fn renew(&mut self, at: i64, lease: &Lease) -> Renewed {
        let renewal = dq_core::Renewal::new(lease.clone(), Duration::from_secs(1));
        Vec::try_from(self.call_at(at, Command::Renew(vec![(&renewal).into()]))).unwrap()[0]
    }

    fn name_expired(&mut self, elapsed_ms: u64) -> Vec<StandingLease> {
        name_expired(&mut self.replica, elapsed_ms)
    }
}

fn name_expired(replica: &mut Replica, elapsed_ms: u64) -> Vec<StandingLease> {
    let ends = replica.end_expired(Duration::from_millis(elapsed_ms));
    let named = ends.into_iter().map(|command| match command {
        Command::EndLeases(named) => named,
        other => panic!("{other:?}"),
    });
    named.flatten().collect()
}

/// A job whose id begins with this number.
fn job(number: u32, payload_bytes: usize) -> NewJob {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&number.to_be_bytes());
    NewJob::new(JobId::from_bytes(id), queue(0), Due::NOW, Bytes::from(vec![1; payload_bytes]))
}

fn plain(id: JobId) -> NewJob {
    NewJob::new(id, queue(0), Due::NOW, "payload".into())
}

const HOUR: i64 = 3_600_000;

#[test]
fn a_named_lease_ends_unless_it_was_renewed_or_granted_again() {
    let mut log = TestLog { elapsed: Duration::from_secs(60), ..TestLog::default() };
    let _ = log.schedule(plain(id(1)));
    let lease = log.lease(0);
    assert!(log.name_expired(60_998).is_empty(), "it lasts a second since it was seen");
    let named = log.name_expired(61_000);
    assert_eq!(named.len(), 1);
    assert!(log.name_expired(99_000).is_empty(), "it is named once");
    // Another process has renewed it, and the name comes twice.
    assert!(matches!(log.renew(0, &lease), Renewed::Until(_)));
    for _ in 0..2 {
        log.call_at(HOUR, Command::EndLeases(named.clone()));
        assert_eq!(log.cancel(0, id(1)), Cancelled::AlreadyRunning);
    }
    let renewed = log.name_expired(61_000);
    log.call_at(-HOUR, Command::EndLeases(renewed.clone()));
    assert_eq!(log.renew(0, &lease), Renewed::LostLease);
    let job = log.replica.machine().peek(id(1)).unwrap();
    assert_eq!((job.deliveries, job.losses), (1, 1));
    log.lease(300);
    log.call(Command::EndLeases(renewed));
    assert_eq!(log.cancel(0, id(1)), Cancelled::AlreadyRunning, "another token");
}

#[test]
fn the_lease_of_a_job_that_is_claimed_early_lasts_to_the_end_that_its_holder_knows() {
    let mut log = TestLog::default();
    let _ = log.schedule(plain(id(1)).due(Timestamp::from_millis(102)));
    log.elapsed = Duration::from_millis(100);
    let claimed = log.claim(100, 1);
    assert_eq!(claimed.jobs[0].leased_until, Timestamp::from_millis(1_102));
    assert!(log.name_expired(1_100).is_empty());
    assert_eq!(log.name_expired(1_102).len(), 1);
}

#[test]
fn a_process_that_starts_waits_for_the_whole_length_of_a_lease() {
    let mut log = TestLog::default();
    let _ = log.schedule(plain(id(1)));
    let lease = log.lease(0);
    log.renew(0, &lease);
    log.call(Command::Close(0));
    let begin = log.write_snapshot();
    let mut restarted = Replica::starting_at(begin);
    restarted.set_seen(Duration::from_secs(500));
    for (offset, message) in log.messages.range(begin..) {
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
    log.call(Command::EndLeases(named));
    assert_eq!(log.cancel(0, id(1)), Cancelled::Cancelled);
}

#[test]
fn the_log_refuses_all_jobs_beyond_its_capacity_and_takes_what_frees_it() {
    let mut log = TestLog::default();
    let keyed = |number, bytes| {
        let mut job = job(number, bytes);
        job.key = Some(JobKey::new("key").unwrap());
        job.on_conflict = OnConflict::Replace;
        job
    };
    assert!(log.schedule(keyed(1_000, 500)).is_some(), "without a limit");
    log.call(Command::SetCapacity(20_000));
    let jobs = log.fill(500);
    assert!((15..30).contains(&jobs), "{jobs} jobs");
    assert!((90..=100).contains(&log.replica.usage().percent()));
    // A repeated call adds nothing, nor does a job in place of another.
    assert!(matches!(log.schedule(job(0, 500)), Some(Scheduled::Created(_))));
    assert!(matches!(log.schedule(keyed(1_001, 500)), Some(Scheduled::Replaced(_))));
    assert!(log.schedule(keyed(1_002, 2_000)).is_none(), "it is larger");
    // Dead jobs are refused too, and a batch as a whole.
    let park = Command::Park(vec![(job(2_000, 10_000).into(), "foreign".to_owned())]);
    assert!(matches!(log.call(park), CommandReply::Full));
    let batch = [job(0, 500), job(3_000, 500)].map(Into::into);
    let batch = Command::Schedule(batch.into());
    assert!(matches!(log.call(batch), CommandReply::Full));
    assert_eq!(log.replica.machine().len() as u32, jobs + 1, "nothing was stored");
    for number in 0..2 {
        assert_eq!(log.cancel(0, job(number, 0).id), Cancelled::Cancelled);
    }
    assert!(log.schedule(job(4_000, 500)).is_some());
}

#[test]
fn errors_are_shortened_while_the_log_is_full() {
    let mut log = TestLog::default();
    let capacity = 100_000;
    log.call(Command::SetCapacity(capacity));
    let jobs = log.fill(100) as usize;
    let leased = log.claim(0, jobs).jobs;
    assert_eq!(leased.len(), jobs);
    for leased in &leased {
        let reason = DeadReason::new(DeadKind::Rejected, "e".repeat(2_000));
        let settlement = Settlement::new(leased.lease(), Verdict::Dead { reason, failed: true });
        let settle = Command::Settle(vec![wire::Settlement::try_from(&settlement).unwrap()]);
        let settled: Vec<Settled> = log.call(settle).try_into().unwrap();
        assert_eq!(settled, [Settled::Accepted]);
    }
    // The last long error may begin just below the limit.
    let stored = log.replica.machine().stored_bytes();
    assert!(stored <= capacity + 2_048, "{stored} bytes");
    assert!(log.schedule(job(9_999, 100)).is_none());
}

#[test]
fn a_log_that_begins_with_a_foreign_message_has_an_id() {
    let mut replica = Replica::starting_at(0);
    assert_eq!(replica.log_id(), 0);
    let ids = [1, 2].map(|sequence| {
        let (at, command) = (Timestamp::EPOCH, Command::Barrier);
        replica.apply(sequence, 0, Entry { producer_id: 7, sequence, at, command });
        replica.log_id()
    });
    assert!(ids[0] != 0 && ids[1] == ids[0], "{ids:?}");
}
