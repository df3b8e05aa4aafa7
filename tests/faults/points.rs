//! One trial per named point and behaviour. Checks the stored job after the crash and its later
//! runs in a second process.

use std::fmt::Display;
use std::path::Path;

use dq::prelude::*;
use dq::{DeadKind, JobId, JobState, JobView};
use libtest_mimic::{Failed, Trial};

use crate::process::{Plan, Point, aborted, bystander, connect, faulty, poison, spawn, starts};

/// Failed attempts, or the number of the present one, and deliveries.
type Counts = (u32, u32);

struct Case {
    name: &'static str,
    plan: Plan,
    /// Where the process aborts; `None` if the handler aborts.
    point: Option<Point>,
    /// Failed attempts and deliveries after the crash; `None` if the job has left the store.
    after_crash: Option<Counts>,
    /// Attempt and delivery of each start, in both processes.
    starts: &'static [Counts],
    is_dead: bool,
}

const ONCE: &[Counts] = &[(1, 1)];
const TWICE: &[Counts] = &[(1, 1), (1, 2)];
/// After a crash, a job of which no attempt has failed, and its one delivery.
const LEASED: Option<Counts> = Some((0, 1));

/// A crashed run counts as a delivery, never as a failed attempt.
const CASES: [Case; 18] = [
    case("claim", Plan::Succeed, Point::Claimed, LEASED, &[(1, 2)]),
    case("start", Plan::Succeed, Point::Started, LEASED, &[(1, 2)]),
    Case { point: None, ..case("handler", Plan::AbortAtFirst, Point::Started, LEASED, TWICE) },
    case("renew", Plan::SlowAtFirst, Point::Renewed, LEASED, TWICE),
    case("finish", Plan::Succeed, Point::Finished, LEASED, TWICE),
    case("settle", Plan::Succeed, Point::Settled, None, ONCE),
    case("finish/skip", Plan::Skip, Point::Finished, LEASED, TWICE),
    case("settle/skip", Plan::Skip, Point::Settled, None, ONCE),
    case("finish/retry", Plan::FailAtFirst, Point::Finished, LEASED, &[(1, 1), (1, 2), (2, 3)]),
    case("settle/retry", Plan::FailAtFirst, Point::Settled, Some((1, 1)), &[(1, 1), (2, 2)]),
    case("finish/snooze", Plan::SnoozeAtFirst, Point::Finished, LEASED, TWICE),
    case("settle/snooze", Plan::SnoozeAtFirst, Point::Settled, LEASED, TWICE),
    case("finish/again", Plan::Again, Point::Finished, LEASED, &[(1, 1), (1, 2), (1, 3)]),
    case("settle/again", Plan::Again, Point::Settled, LEASED, TWICE),
    Case { is_dead: true, ..case("finish/dead", Plan::Reject, Point::Finished, LEASED, TWICE) },
    Case { is_dead: true, ..case("settle/dead", Plan::Reject, Point::Settled, Some((1, 1)), ONCE) },
    case("stop", Plan::SlowAtFirst, Point::Stopping, LEASED, TWICE),
    case("release", Plan::SlowAtFirst, Point::Released, LEASED, TWICE),
];

const fn case(
    name: &'static str,
    plan: Plan,
    point: Point,
    after_crash: Option<Counts>,
    starts: &'static [Counts],
) -> Case {
    Case { name, plan, point: Some(point), after_crash, starts, is_dead: false }
}

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |case: Case| Trial::test(format!("killed_at/{}", case.name), move || check(&case));
    let mut trials: Vec<Trial> = CASES.into_iter().map(trial).collect();
    trials.push(Trial::test("killed_by/poison", killed_by_poison));
    trials
}

/// How often a trial restarts because its lease expired on a busy machine.
const MAX_REPEATS: usize = 4;

fn check(case: &Case) -> Result<(), Failed> {
    for _attempt in 0..=MAX_REPEATS {
        match check_once(case) {
            Ok(()) => return Ok(()),
            Err(Trouble::LeaseExpired) => {}
            Err(Trouble::Failed(failed)) => return Err(failed),
        }
    }
    Err("the point is not reached".into())
}

enum Trouble {
    /// The lease expired before the point, and the job was delivered again.
    LeaseExpired,
    Failed(Failed),
}

impl<E: Into<Failed>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn check_once(case: &Case) -> Result<(), Trouble> {
    let dir = tempfile::tempdir()?;
    let dq = connect(dir.path()).await?;
    let job = dq.schedule::<faulty>(case.plan).remember(1.hours()).await?.id();
    let other = dq.schedule::<bystander>(()).after(1.hours()).await?.id();
    dq.close().await?;

    let status = spawn(dir.path(), case.point);
    if starts(dir.path()).iter().any(|start| start.delivery > 1) {
        return Err(Trouble::LeaseExpired);
    }
    ensure(aborted(status), format!("{status} before the point {:?}", case.point))?;
    let crashed = check_store(dir.path(), job, other).await?;
    let counts = crashed.as_ref().map(|view| (view.job.attempts, view.job.deliveries));
    ensure(counts == case.after_crash, format!("after the crash: {crashed:?}"))?;

    let ended = spawn(dir.path(), None);
    ensure(ended.success(), format!("the second runner failed: {ended}"))?;
    let at_end = check_store(dir.path(), job, other).await?;
    let state = at_end.as_ref().map(|view| view.state);
    let expected = case.is_dead.then_some(JobState::Dead);
    ensure(state == expected, format!("in the end: {at_end:?}"))?;
    check_end(dir.path(), case, job).await?;

    let starts = starts(dir.path());
    let seen: Vec<_> = starts.iter().map(|start| (start.attempt, start.delivery)).collect();
    ensure(seen == case.starts, format!("attempts and deliveries: {seen:?}"))?;
    ensure(starts.is_sorted_by(|a, b| a.token < b.token), format!("tokens must grow: {starts:?}"))?;
    Ok(())
}

/// Whatever crashed, an ended job is in the history once and its id stays taken.
async fn check_end(dir: &Path, case: &Case, job: JobId) -> Result<(), Failed> {
    let dq = connect(dir).await?;
    let ended = dq.queue(faulty::code())?.browse(JobState::Ended).await?.jobs;
    let count = ended.iter().filter(|view| view.job.id == job).count();
    ensure(count == usize::from(!case.is_dead), format!("{count} times in the history"))?;
    let again = dq.schedule::<faulty>(Plan::Succeed).id(job).await?;
    // A repeated call for a stored job gets the first call's answer.
    let is_taken = match again {
        Scheduled::Ended(_) => !case.is_dead,
        Scheduled::Created(_) => case.is_dead,
        _ => false,
    };
    ensure(is_taken, format!("scheduled again with the id of the job: {again:?}"))?;
    let stats = dq.queue(faulty::code())?.stats().await?;
    dq.close().await?;
    ensure(stats.stored() == u64::from(case.is_dead), format!("stored again: {stats:?}"))
}

/// A job is dead after `max_losses` crashes, so that other jobs can run.
#[tokio::main(flavor = "current_thread")]
async fn killed_by_poison() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dq = connect(dir.path()).await?;
    let job = dq.schedule::<poison>(()).await?.id();
    dq.close().await?;
    for _loss in 0..2 {
        ensure(aborted(spawn(dir.path(), None)), "the handler did not run")?;
    }
    let ended = spawn(dir.path(), None);
    ensure(ended.success(), format!("the third runner failed: {ended}"))?;
    let dq = connect(dir.path()).await?;
    let dead = dq.get::<poison>(job).await?.and_then(|view| view.dead);
    dq.close().await?;
    let lost = dead.as_ref().is_some_and(|(reason, _)| reason.kind == DeadKind::Lost);
    ensure(lost && starts(dir.path()).len() == 2, format!("in the end: {dead:?}"))
}

pub(crate) async fn count_stored(dq: &Dq) -> Result<u64, Failed> {
    let mut stored = 0;
    for stats in dq.stats().await? {
        ensure(stats.adds_up() == Some(true), format!("the counts do not add up: {stats:?}"))?;
        stored += stats.stored();
    }
    Ok(stored)
}

/// The job under test; `None` if it has ended. The counts must add up, and the other job must be
/// unchanged.
async fn check_store(dir: &Path, job: JobId, other: JobId) -> Result<Option<JobView>, Failed> {
    let dq = connect(dir).await?;
    count_stored(&dq).await?;
    let other = dq.get::<bystander>(other).await?;
    let is_unchanged =
        other.is_some_and(|other| other.state == JobState::Scheduled && other.job.deliveries == 0);
    ensure(is_unchanged, "the job that is not due was changed")?;
    let view = dq.get::<faulty>(job).await?;
    dq.close().await?;
    Ok(view.filter(|view| view.state != JobState::Ended))
}

pub(crate) fn ensure(condition: bool, message: impl Display) -> Result<(), Failed> {
    if condition { Ok(()) } else { Err(message.into()) }
}
