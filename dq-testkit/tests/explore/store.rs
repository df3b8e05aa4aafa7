//! The explored store: the machine, or a variant with one defect. Some variants make a call in two
//! steps, between which others may act or the caller may crash.

use std::time::Duration;

use bytes::Bytes;
use dq_core::backend::{ClaimParams, Want};
use dq_core::machine::{JobPlacement, Machine, MachineSnapshot};
use dq_core::{
    Cancelled, Due, FencingToken, JobId, JobKey, JobRef, Lease, LeasedJob, NewJob, OnConflict,
    QueueName, Renewal, Renewed, Scheduled, Settled, Settlement, Timestamp, Verdict,
};

/// Milliseconds.
pub(crate) const LEASE: i64 = 2;
/// For jobs and retries, in milliseconds.
pub(crate) const DELAY: i64 = 1;

/// The store without a defect, or with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    /// The machine as it is, which pins ids and keeps no history.
    Correct,
    /// The machine with a history and without pins.
    CorrectByHistory,
    /// Reads a due job, then leases it without a second look.
    ClaimsInTwoSteps,
    /// Takes jobs that are due one millisecond later.
    ClaimsEarly,
    AcknowledgesOnClaim,
    ReusesTokens,
    NeverExpires,
    /// Takes jobs whose lease expires one millisecond later.
    ExpiresEarly,
    /// Counts an expired lease as a failed attempt.
    CountsExpiries,
    /// An expired lease removes its job.
    DropsExpired,
    RenewsAnyToken,
    /// Confirms a renewal after the lease was lost.
    RenewsExpired,
    SettlesAnyToken,
    /// Checks the token, then settles without a second look.
    SettlesInTwoSteps,
    ForgetsFailures,
    CancelsRunning,
    /// Checks that the job waits, then confirms.
    CancelsInTwoSteps,
    /// Removes the old job, then stores the new one.
    ReplacesInTwoSteps,
    /// A repeated `schedule` makes a running job wait.
    RepeatsAnew,
    /// Ended ids are neither pinned nor in a history.
    ForgetsEnds,
}

/// A call of a client. Jobs are numbered from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Call {
    Schedule(usize),
    Cancel(usize),
    Claim,
    /// The job and the token.
    Renew(usize, u64),
    Settle(usize, u64, Ending),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Ending {
    Done,
    Retry,
    Release,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Scheduled(Scheduled),
    Cancelled(Cancelled),
    /// At most one job.
    Claimed(Option<LeasedJob>),
    Renewed(Renewed),
    Settled(Settled),
}

/// What the first step of a call has read: a job that the second step may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FirstStep {
    job: Option<usize>,
}

pub(crate) enum Progress {
    Answered(Answer),
    /// A second step follows.
    Unfinished(FirstStep),
}

pub(crate) fn queue() -> QueueName {
    QueueName::new("q").expect("a valid name")
}

pub(crate) fn id(job: usize) -> JobId {
    JobId::from_bytes([u8::try_from(job).expect("a small number") + 1; 16])
}

pub(crate) fn number(id: JobId) -> usize {
    usize::from(id.to_bytes()[0]) - 1
}

fn millis(millis: i64) -> Duration {
    Duration::from_millis(millis.unsigned_abs())
}

/// Job 1 replaces job 0, because both have one key. Ids stay taken longer than the world exists.
fn new_job(job: usize) -> NewJob {
    let new = NewJob::new(id(job), queue(), Due::After(millis(DELAY)), Bytes::new());
    let policy = if job == 0 { OnConflict::Keep } else { OnConflict::Replace };
    new.key(JobKey::new("k").expect("a valid key"))
        .on_conflict(policy)
        .remember(Duration::from_secs(60))
}

/// Makes a call, or its first or second step.
pub(crate) fn step(
    variant: Variant,
    store: &mut MachineSnapshot,
    call: Call,
    first: Option<FirstStep>,
    now: i64,
) -> Progress {
    prepare(variant, store, now);
    let is_split = matches!(
        (variant, call),
        (Variant::ClaimsInTwoSteps, Call::Claim)
            | (Variant::SettlesInTwoSteps, Call::Settle(..))
            | (Variant::CancelsInTwoSteps, Call::Cancel(_))
            | (Variant::ReplacesInTwoSteps, Call::Schedule(1))
    );
    match first {
        None if is_split => first_step(store, call, now),
        Some(FirstStep { job }) => Progress::Answered(second_step(store, call, job, now)),
        None => Progress::Answered(whole(variant, store, call, now)),
    }
}

/// Brings the store into the state in which the variant would be.
fn prepare(variant: Variant, store: &mut MachineSnapshot, now: i64) {
    if variant != Variant::CorrectByHistory {
        store.ended.clear();
    }
    let expired = |placement: &JobPlacement| matches!(placement, JobPlacement::Leased { until, .. } if until.as_millis() <= now);
    match variant {
        Variant::CountsExpiries => {
            for job in store.jobs.iter_mut().filter(|job| expired(&job.placement)) {
                job.job.attempts += 1;
            }
        }
        Variant::DropsExpired => store.jobs.retain(|job| !expired(&job.placement)),
        Variant::CorrectByHistory | Variant::ForgetsEnds => store.pins.clear(),
        _ => {}
    }
}

/// Makes a call in one step, with the variant's defect.
fn whole(variant: Variant, store: &mut MachineSnapshot, call: Call, now: i64) -> Answer {
    let current =
        |store: &MachineSnapshot, job: usize, token: u64| token_of(store, job).unwrap_or(token);
    let call = match (variant, call) {
        (Variant::RenewsAnyToken, Call::Renew(job, token)) => {
            Call::Renew(job, current(store, job, token))
        }
        (Variant::SettlesAnyToken, Call::Settle(job, token, ending)) => {
            Call::Settle(job, current(store, job, token), ending)
        }
        _ => call,
    };
    if let (Variant::RepeatsAnew, Call::Schedule(job)) = (variant, call)
        && let Some(job) = store.jobs.iter_mut().find(|it| it.job.id == id(job))
    {
        job.placement = JobPlacement::Waiting;
    }
    let mut machine = Machine::restore(std::mem::take(store), Default::default());
    let mut at = now;
    match variant {
        Variant::NeverExpires => machine = machine.with_explicit_lease_ends(),
        Variant::ExpiresEarly if call == Call::Claim => {
            machine.expire_leases(Timestamp::from_millis(now + 1));
        }
        Variant::ClaimsEarly if call == Call::Claim => at = now + 1,
        _ => {}
    }
    let mut answer = on_machine(&mut machine, call, Timestamp::from_millis(at));
    *store = machine.snapshot();
    match (variant, &mut answer) {
        (Variant::AcknowledgesOnClaim, Answer::Claimed(Some(leased))) => {
            store.jobs.retain(|it| it.job.id != leased.job.id);
            // So that the counts add up and the search finds the lost job.
            store.queues[0].2.done += 1;
        }
        (Variant::ReusesTokens, Answer::Claimed(Some(leased))) => {
            leased.token = FencingToken(1);
            for job in store.jobs.iter_mut().filter(|it| it.job.id == leased.job.id) {
                job.placement =
                    JobPlacement::Leased { token: leased.token, until: leased.leased_until };
            }
        }
        (Variant::ForgetsFailures, Answer::Settled(_)) => {
            for job in &mut store.jobs {
                job.job.attempts = 0;
            }
        }
        (Variant::CancelsRunning, Answer::Cancelled(answer @ Cancelled::AlreadyRunning)) => {
            *answer = Cancelled::Cancelled;
        }
        (Variant::RenewsExpired, Answer::Renewed(answer @ Renewed::LostLease)) => {
            *answer = Renewed::Until(Timestamp::from_millis(now + LEASE));
        }
        _ => {}
    }
    answer
}

fn on_machine(machine: &mut Machine, call: Call, now: Timestamp) -> Answer {
    let lease = |job, token| Lease { queue: queue(), job: id(job), token: FencingToken(token) };
    match call {
        Call::Schedule(job) => Answer::Scheduled(machine.schedule(new_job(job), (), now)),
        Call::Cancel(job) => Answer::Cancelled(machine.cancel(&JobRef::new(queue(), id(job)), now)),
        Call::Claim => {
            let wants = [Want::new(queue(), 1, millis(LEASE))];
            let mut claimed = machine.claim(ClaimParams::new(&wants, 1, "runner"), now);
            Answer::Claimed(claimed.jobs.pop())
        }
        Call::Renew(job, token) => {
            Answer::Renewed(machine.renew(&Renewal::new(lease(job, token), millis(LEASE)), now))
        }
        Call::Settle(job, token, ending) => {
            let verdict = match ending {
                Ending::Done => Verdict::Done,
                Ending::Retry => Verdict::retry(Due::After(millis(DELAY)), "an error"),
                Ending::Release => Verdict::Release { started: false },
            };
            Answer::Settled(machine.settle(&Settlement::new(lease(job, token), verdict), now))
        }
    }
}

/// Reads what the second step relies on. The first step of a replacement removes the old job.
fn first_step(store: &mut MachineSnapshot, call: Call, now: i64) -> Progress {
    let at = Timestamp::from_millis(now);
    let mut machine = Machine::restore(std::mem::take(store), Default::default());
    machine.expire_leases(at);
    let progress = match call {
        Call::Claim => {
            let due = machine.waiting(&queue(), Timestamp::from_millis(-1), at).next();
            Progress::Unfinished(FirstStep { job: due.map(|(job, ())| number(job.id)) })
        }
        Call::Settle(job, token, _) => {
            *store = machine.snapshot();
            return if token_of(store, job) == Some(token) {
                Progress::Unfinished(FirstStep { job: Some(job) })
            } else {
                Progress::Answered(Answer::Settled(Settled::LostLease))
            };
        }
        Call::Cancel(job) if machine.is_waiting(id(job)) => {
            Progress::Unfinished(FirstStep { job: Some(job) })
        }
        Call::Schedule(_) if machine.is_waiting(id(0)) => {
            let _ = machine.cancel(&JobRef::new(queue(), id(0)), at);
            Progress::Unfinished(FirstStep { job: Some(0) })
        }
        other => Progress::Answered(on_machine(&mut machine, other, at)),
    };
    *store = machine.snapshot();
    progress
}

/// Writes what the first step's read allowed, without a second look.
fn second_step(store: &mut MachineSnapshot, call: Call, job: Option<usize>, now: i64) -> Answer {
    let at = Timestamp::from_millis(now);
    if let (Call::Claim, Some(job)) = (call, job) {
        let Some(record) = store.jobs.iter_mut().find(|it| it.job.id == id(job)) else {
            return Answer::Claimed(None);
        };
        store.last_token += 1;
        let (token, until) = (FencingToken(store.last_token), at + millis(LEASE));
        record.placement = JobPlacement::Leased { token, until };
        record.job.deliveries += 1;
        return Answer::Claimed(Some(LeasedJob::new(record.job.clone(), token, until)));
    }
    let current = job.and_then(|job| token_of(store, job));
    let mut machine = Machine::restore(std::mem::take(store), Default::default());
    let answer = match call {
        Call::Claim => Answer::Claimed(None),
        Call::Settle(job, token, ending) => {
            let settle = Call::Settle(job, current.unwrap_or(token), ending);
            on_machine(&mut machine, settle, at)
        }
        Call::Cancel(_) => {
            on_machine(&mut machine, call, at);
            Answer::Cancelled(Cancelled::Cancelled)
        }
        _ => match on_machine(&mut machine, call, at) {
            Answer::Scheduled(Scheduled::Created(receipt)) => {
                Answer::Scheduled(Scheduled::Replaced(receipt))
            }
            other => other,
        },
    };
    *store = machine.snapshot();
    answer
}

/// The token of the lease that holds a job.
fn token_of(store: &MachineSnapshot, job: usize) -> Option<u64> {
    let record = store.jobs.iter().find(|it| it.job.id == id(job))?;
    match record.placement {
        JobPlacement::Leased { token, .. } => Some(token.0),
        _ => None,
    }
}
