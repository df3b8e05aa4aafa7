//! One trial per named point and behaviour. Checks the stored job after the crash and its later
//! runs in a second process.

use std::path::Path;

use dq::prelude::*;
use dq::{DeadKind, JobId, JobState, JobView};
use libtest_mimic::{Failed, Trial};

use crate::process::{Plan, Point, aborted, bystander, connect, faulty, poison, spawn, starts};

struct Case {
    name: &'static str,
    plan: Plan,
    /// Where the process aborts; `None` if the handler aborts.
    point: Option<Point>,
    /// Failed attempts and deliveries after the crash; `None` if the job has left the store.
    after_crash: Option<(u32, u32)>,
    starts: &'static [(u32, u32)],
    /// The job ends dead rather than finished.
    dead: bool,
}

/// A crashed run counts as a delivery, never as a failed attempt.
const CASES: [Case; 18] = [
    case("claim", Plan::Succeed, Point::Claimed, Some((0, 1)), &[(1, 2)]),
    case("start", Plan::Succeed, Point::Started, Some((0, 1)), &[(1, 2)]),
    Case {
        point: None,
        ..case("handler", Plan::AbortAtFirst, Point::Started, Some((0, 1)), TWICE)
    },
    case("renew", Plan::SlowAtFirst, Point::Renewed, Some((0, 1)), TWICE),
    case("finish", Plan::Succeed, Point::Finished, Some((0, 1)), TWICE),
    case("settle", Plan::Succeed, Point::Settled, None, ONCE),
    case("finish/skip", Plan::Skip, Point::Finished, Some((0, 1)), TWICE),
    case("settle/skip", Plan::Skip, Point::Settled, None, ONCE),
    case(
        "finish/retry",
        Plan::FailAtFirst,
        Point::Finished,
        Some((0, 1)),
        &[(1, 1), (1, 2), (2, 3)],
    ),
    case("settle/retry", Plan::FailAtFirst, Point::Settled, Some((1, 1)), &[(1, 1), (2, 2)]),
    case("finish/snooze", Plan::SnoozeAtFirst, Point::Finished, Some((0, 1)), TWICE),
    case("settle/snooze", Plan::SnoozeAtFirst, Point::Settled, Some((0, 1)), TWICE),
    case("finish/again", Plan::Again, Point::Finished, Some((0, 1)), &[(1, 1), (1, 2), (1, 3)]),
    case("settle/again", Plan::Again, Point::Settled, Some((0, 1)), TWICE),
    Case { dead: true, ..case("finish/dead", Plan::Reject, Point::Finished, Some((0, 1)), TWICE) },
    Case { dead: true, ..case("settle/dead", Plan::Reject, Point::Settled, Some((1, 1)), ONCE) },
    case("stop", Plan::SlowAtFirst, Point::Stopping, Some((0, 1)), TWICE),
    case("release", Plan::SlowAtFirst, Point::Released, Some((0, 1)), TWICE),
];

const ONCE: &[(u32, u32)] = &[(1, 1)];
const TWICE: &[(u32, u32)] = &[(1, 1), (1, 2)];

const fn case(
    name: &'static str,
    plan: Plan,
    point: Point,
    after_crash: Option<(u32, u32)>,
    starts: &'static [(u32, u32)],
) -> Case {
    Case { name, plan, point: Some(point), after_crash, starts, dead: false }
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
    let mut repeats = 0;
    loop {
        match check_once(case) {
            // The lease expired before the point, and the job was delivered again.
            Err(Trouble::LeaseEnded) if repeats < MAX_REPEATS => repeats += 1,
            Err(Trouble::LeaseEnded) => return Err("the point is not reached".into()),
            Err(Trouble::Failed(failed)) => return Err(failed),
            Ok(()) => return Ok(()),
        }
    }
}

enum Trouble {
    LeaseEnded,
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
        return Err(Trouble::LeaseEnded);
    }
    ensure(aborted(status), format!("{status} before the point {:?}", case.point))?;
    let crashed = check_store(dir.path(), job, other).await?;
    let counts = crashed.as_ref().map(|view| (view.job.attempts, view.job.deliveries));
    ensure(counts == case.after_crash, format!("after the crash: {crashed:?}"))?;

    let ended = spawn(dir.path(), None);
    ensure(ended.success(), format!("the second runner failed: {ended}"))?;
    let at_end = check_store(dir.path(), job, other).await?;
    let dead = at_end.as_ref().is_some_and(|view| view.state == JobState::Dead);
    ensure(dead == case.dead && at_end.is_some() == case.dead, format!("in the end: {at_end:?}"))?;

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
    ensure(count == usize::from(!case.dead), format!("{count} times in the history"))?;
    let again = dq.schedule::<faulty>(Plan::Succeed).id(job).await?;
    // A repeated call for a stored job gets the first call's answer.
    let is_taken = match again {
        Scheduled::Ended(_) => !case.dead,
        Scheduled::Created(_) => case.dead,
        _ => false,
    };
    ensure(is_taken, format!("scheduled again with the id of the job: {again:?}"))?;
    let stats = dq.queue(faulty::code())?.stats().await?;
    dq.close().await?;
    ensure(stats.stored() == u64::from(case.dead), format!("stored again: {stats:?}"))
}

/// A job is dead after `max_losses` crashes, so that other jobs can run.
#[tokio::main(flavor = "current_thread")]
async fn killed_by_poison() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dq = connect(dir.path()).await?;
    let job = dq.schedule::<poison>(()).await?.id();
    dq.close().await?;
    for _loss in 0..2 {
        ensure(aborted(spawn(dir.path(), None)), "the handler did not run".to_owned())?;
    }
    let ended = spawn(dir.path(), None);
    ensure(ended.success(), format!("the third runner failed: {ended}"))?;
    let dq = connect(dir.path()).await?;
    let dead = dq.get::<poison>(job).await?.and_then(|view| view.dead);
    dq.close().await?;
    let lost = dead.as_ref().is_some_and(|(reason, _)| reason.kind == DeadKind::Lost);
    ensure(lost && starts(dir.path()).len() == 2, format!("in the end: {dead:?}"))
}

/// The job under test; `None` if it has ended. The counts must add up, and the other job must be
/// unchanged.
async fn check_store(dir: &Path, job: JobId, other: JobId) -> Result<Option<JobView>, Failed> {
    let dq = connect(dir).await?;
    for stats in dq.stats().await? {
        ensure(stats.adds_up() == Some(true), format!("the counts do not add up: {stats:?}"))?;
    }
    let unchanged = dq.get::<bystander>(other).await?;
    let unchanged =
        unchanged.is_some_and(|it| it.state == JobState::Scheduled && it.job.deliveries == 0);
    ensure(unchanged, "the job that is not due was changed".to_owned())?;
    let view = dq.get::<faulty>(job).await?;
    dq.close().await?;
    Ok(view.filter(|view| view.state != JobState::Ended))
}

pub(crate) fn ensure(condition: bool, message: String) -> Result<(), Failed> {
    if condition { Ok(()) } else { Err(message.into()) }
}
