//! One trial per point and plan: what is in the store after the crash, and what runs after it.

use std::path::Path;

use dq::prelude::*;
use dq::{DeadKind, JobId, JobState, JobView};
use libtest_mimic::{Failed, Trial};

use crate::process::{Plan, Point, aborted, bystander, connect, faulty, poison, runs, spawn};

struct Case {
    name: &'static str,
    plan: Plan,
    /// `None` when the handler itself is what crashes.
    point: Option<Point>,
    /// Failed attempts and deliveries that the store counts after the crash; `None` when the job
    /// has left it.
    crashed: Option<(u32, u32)>,
    /// Attempt and delivery of each start of the handler, over both processes.
    runs: &'static [(u32, u32)],
    /// Whether it is dead in the end, rather than gone.
    dead: bool,
}

/// A crash costs a delivery, and never an attempt.
const CASES: [Case; 16] = [
    case("claim", Plan::Succeed, Point::Claimed, Some((0, 1)), &[(1, 2)]),
    case("start", Plan::Succeed, Point::Started, Some((0, 1)), &[(1, 2)]),
    Case {
        point: None,
        ..case("handler", Plan::AbortAtFirst, Point::Started, Some((0, 1)), TWICE)
    },
    case("renew", Plan::LingerAtFirst, Point::Renewed, Some((0, 1)), TWICE),
    case("finish", Plan::Succeed, Point::Finished, Some((0, 1)), TWICE),
    case("settle", Plan::Succeed, Point::Settled, None, ONCE),
    case("finish/skip", Plan::SkipIt, Point::Finished, Some((0, 1)), TWICE),
    case("settle/skip", Plan::SkipIt, Point::Settled, None, ONCE),
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
    Case { dead: true, ..case("finish/dead", Plan::Die, Point::Finished, Some((0, 1)), TWICE) },
    Case { dead: true, ..case("settle/dead", Plan::Die, Point::Settled, Some((1, 1)), ONCE) },
    case("stop", Plan::LingerAtFirst, Point::Stopping, Some((0, 1)), TWICE),
    case("release", Plan::LingerAtFirst, Point::Released, Some((0, 1)), TWICE),
];

const ONCE: &[(u32, u32)] = &[(1, 1)];
const TWICE: &[(u32, u32)] = &[(1, 1), (1, 2)];

const fn case(
    name: &'static str,
    plan: Plan,
    point: Point,
    crashed: Option<(u32, u32)>,
    runs: &'static [(u32, u32)],
) -> Case {
    Case { name, plan, point: Some(point), crashed, runs, dead: false }
}

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |case: Case| Trial::test(format!("killed_at/{}", case.name), move || check(&case));
    let mut trials: Vec<Trial> = CASES.into_iter().map(trial).collect();
    trials.push(Trial::test("killed_by/poison", killed_by_poison));
    trials
}

#[tokio::main(flavor = "current_thread")]
async fn check(case: &Case) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let dq = connect(dir.path()).await?;
    let job = dq.schedule::<faulty>(case.plan).await?.id();
    let other = dq.schedule::<bystander>(()).after(1.hours()).await?.id();
    dq.close().await?;

    let died = spawn(dir.path(), case.point);
    ensure(aborted(died), format!("{died}, without coming to {:?}", case.point))?;
    let crashed = look(dir.path(), job, other).await?;
    let counts = crashed.as_ref().map(|view| (view.job.attempts, view.job.deliveries));
    ensure(counts == case.crashed, format!("after the crash: {crashed:?}"))?;

    let ended = spawn(dir.path(), None);
    ensure(ended.success(), format!("the second runner failed: {ended}"))?;
    let left = look(dir.path(), job, other).await?;
    let dead = left.as_ref().is_some_and(|view| view.state == JobState::Dead);
    ensure(dead == case.dead && left.is_some() == case.dead, format!("in the end: {left:?}"))?;

    let runs = runs(dir.path());
    let seen: Vec<_> = runs.iter().map(|run| (run.attempt, run.delivery)).collect();
    ensure(seen == case.runs, format!("attempts and deliveries: {seen:?}"))?;
    ensure(runs.is_sorted_by(|a, b| a.token < b.token), format!("tokens must grow: {runs:?}"))
}

/// A job that takes every runner with it is put aside, so that the others get their turn.
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
    ensure(lost && runs(dir.path()).len() == 2, format!("in the end: {dead:?}"))
}

/// The job under test; everything else must be as it was.
async fn look(dir: &Path, job: JobId, other: JobId) -> Result<Option<JobView>, Failed> {
    let dq = connect(dir).await?;
    for stats in dq.stats().await? {
        ensure(stats.adds_up() == Some(true), format!("the counts do not add up: {stats:?}"))?;
    }
    let untouched = dq.get::<bystander>(other).await?;
    let untouched =
        untouched.is_some_and(|it| it.state == JobState::Scheduled && it.job.deliveries == 0);
    ensure(untouched, "a job that is not due was touched".to_owned())?;
    let view = dq.get::<faulty>(job).await?;
    dq.close().await?;
    Ok(view)
}

pub(crate) fn ensure(holds: bool, otherwise: String) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(otherwise.into()) }
}
