//! The log refuses jobs that would outgrow it, and takes everything else.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Cancelled, ClaimParams, DeadKind, DeadReason, Due, JobId, JobKey, JobRef, LeasedJob, NewJob,
    OnConflict, QueueName, Scheduled, Settled, Settlement, Timestamp, Verdict, Want,
};

use super::replica::{Applied, Replica};
use super::snapshot::job_parts;
use crate::log::command::CommandReply;
use crate::log::generation::Generation;
use crate::log::generation::retention::{Retention, SnapshotStep};
use crate::log::wire::{self, Command, Entry, SnapshotEntry};

const NOW: Timestamp = Timestamp::EPOCH;

struct TestLog {
    replica: Replica,
    retention: Retention,
    offset: u64,
    sequence: u64,
}

impl TestLog {
    fn new(size: u64) -> Self {
        let retention = Retention::new(size, true, Duration::ZERO);
        Self { replica: Replica::starting_at(0), retention, offset: 0, sequence: 0 }
    }

    fn apply(&mut self, command: Command) -> CommandReply {
        let offset = self.offset;
        self.offset += 1;
        self.sequence += 1;
        let sequence = self.sequence;
        let entry = Entry { producer_id: 1, sequence, at: NOW, command };
        let message = wire::encode(std::slice::from_ref(&entry));
        self.retention.add_message(message.len() as u64);
        self.retention.add_entry(&entry.command, entry.command.snapshot_bytes());
        if let Some(step) = SnapshotStep::of(&entry.command) {
            self.retention.observe(offset, step, Duration::ZERO);
        }
        match self.replica.apply(offset, 0, entry) {
            Applied::Reply(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn schedule(&mut self, job: NewJob) -> Option<Scheduled> {
        match self.apply(Command::Schedule(vec![job.try_into().unwrap()])) {
            CommandReply::Scheduled(mut results) => results.pop(),
            CommandReply::Full => None,
            other => panic!("{other:?}"),
        }
    }

    fn fill(&mut self, payload_bytes: usize) -> u32 {
        (0..).find(|number| self.schedule(job(*number, payload_bytes)).is_none()).unwrap()
    }

    fn claim_all(&mut self) -> Vec<LeasedJob> {
        let limit = self.replica.machine().len();
        let wants = [Want::new(queue(), limit, Duration::from_secs(60))];
        let claim = wire::Claim::new(&ClaimParams::new(&wants, limit, "worker"), Vec::new());
        match self.apply(Command::Claim(claim)) {
            CommandReply::Claimed(claimed) => claimed.jobs,
            other => panic!("{other:?}"),
        }
    }

    fn kill(&mut self, leased: &[LeasedJob], error_bytes: usize) {
        for leased in leased {
            let reason = DeadReason::new(DeadKind::Rejected, "e".repeat(error_bytes));
            let verdict = Verdict::Dead { reason, failed: true };
            let settlement = Settlement::new(leased.lease(), verdict);
            let settlement = wire::Settlement::try_from(&settlement).unwrap();
            match self.apply(Command::Settle(vec![settlement])) {
                CommandReply::Settled(results) => assert_eq!(results, [Settled::Accepted]),
                other => panic!("{other:?}"),
            }
        }
    }

    /// With a snapshot of jobs that all have this payload.
    fn change_generation(&mut self, size: u64, payload: &Bytes) {
        let generation = Generation::of(self.offset);
        self.apply(Command::Close(generation.number()));
        assert!(self.replica.is_closed());
        self.replica.begin_generation();
        self.retention = Retention::new(size, false, Duration::ZERO);
        self.offset = generation.next().offset(0);
        let begin = self.offset;
        self.apply(Command::Snapshot(SnapshotEntry::Begin));
        let (mut parts, jobs) = self.replica.snapshot();
        parts.extend(job_parts(jobs, |_, _| Some(payload.clone())));
        for entry in SnapshotEntry::all(begin, parts) {
            self.apply(Command::Snapshot(entry));
        }
    }
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn job(number: u32, payload_bytes: usize) -> NewJob {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&number.to_be_bytes());
    NewJob::new(JobId::from_bytes(id), queue(), Due::NOW, Bytes::from(vec![1; payload_bytes]))
}

#[test]
fn the_log_refuses_all_jobs_beyond_its_capacity_and_takes_what_frees_it() {
    let mut log = TestLog::new(u64::MAX);
    let keyed = |number, bytes| {
        let mut job = job(number, bytes);
        job.key = Some(JobKey::new("key").unwrap());
        job.on_conflict = OnConflict::Replace;
        job
    };
    assert!(log.schedule(keyed(1_000, 500)).is_some(), "without a limit");
    let capacity = 20_000;
    log.apply(Command::SetCapacity(capacity));
    let jobs = log.fill(500);
    assert!((15..30).contains(&jobs), "{jobs} jobs");
    assert!((90..=100).contains(&log.replica.usage().percent()));
    // A repeated call adds nothing, nor does a job in place of another.
    assert!(matches!(log.schedule(job(0, 500)), Some(Scheduled::Created(_))));
    assert!(matches!(log.schedule(keyed(1_001, 500)), Some(Scheduled::Replaced(_))));
    assert!(log.schedule(keyed(1_002, 2_000)).is_none(), "it is larger");
    // Dead jobs are refused too, and a batch as a whole.
    let park = Command::Park(vec![(job(2_000, 10_000).try_into().unwrap(), "foreign".to_owned())]);
    assert!(matches!(log.apply(park), CommandReply::Full));
    let batch = [job(0, 500), job(3_000, 500)].map(|job| job.try_into().unwrap());
    let batch = Command::Schedule(batch.into());
    assert!(matches!(log.apply(batch), CommandReply::Full));
    assert_eq!(log.replica.machine().len() as u32, jobs + 1, "nothing was stored");
    let cancel = |number| Command::Cancel(vec![(&JobRef::new(queue(), job(number, 0).id)).into()]);
    for number in 0..2 {
        match log.apply(cancel(number)) {
            CommandReply::Cancelled(results) => assert_eq!(results, [Cancelled::Cancelled]),
            other => panic!("{other:?}"),
        }
    }
    assert!(log.schedule(job(4_000, 500)).is_some());
}

#[test]
fn dead_jobs_with_long_errors_do_not_wedge_the_log() {
    // 2,000 dead jobs with errors of 2 KiB take a quarter of the log.
    let size = 16 << 20;
    let mut log = TestLog::new(size);
    let payload = Bytes::from(vec![1; 100]);
    (0..2_000).for_each(|number| assert!(log.schedule(job(number, payload.len())).is_some()));
    let leased = log.claim_all();
    assert_eq!(leased.len(), 2_000);
    log.kill(&leased, 2_048);
    for _ in 0..3 {
        log.change_generation(size, &payload);
        assert!(!log.retention.blocks_growth(), "the snapshot does not count as appended");
        assert!(log.retention.is_complete() && !log.retention.needs_close(2_000));
    }
}

#[test]
fn errors_are_shortened_while_the_log_is_full() {
    let mut log = TestLog::new(u64::MAX);
    let capacity = 100_000;
    log.apply(Command::SetCapacity(capacity));
    let jobs = log.fill(100) as usize;
    let leased = log.claim_all();
    assert_eq!(leased.len(), jobs);
    log.kill(&leased, 2_000);
    // The last long error may begin just below the limit.
    let stored = log.replica.machine().stored_bytes();
    assert!(stored <= capacity + 2_048, "{stored} bytes");
    assert!(log.schedule(job(9_999, 100)).is_none());
}
