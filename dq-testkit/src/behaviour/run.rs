//! The suite as a test binary, and as a call.

use std::process::ExitCode;
use std::sync::Arc;

use dq_core::Result;
use libtest_mimic::Arguments;
use tokio::runtime::{Builder, Runtime};

use super::failure::Failure;
use super::subject::Subject;
use super::trial::Trial;

/// The trials that say something about a subject.
///
/// # Errors
/// The subject cannot be opened.
pub async fn trials_for(subject: &dyn Subject) -> Result<Vec<&'static Trial>> {
    let store = subject.prepare().await?;
    let backend = store.open().await?;
    let (capabilities, time) = (backend.capabilities(), store.time());
    backend.close().await?;
    Ok(super::trials().filter(|trial| trial.applies(&capabilities, &time)).collect())
}

/// Runs every trial that applies, side by side, and names those that failed.
///
/// # Errors
/// The subject cannot be opened.
pub async fn run(subject: &dyn Subject) -> Result<Vec<(&'static str, Failure)>> {
    let trials = trials_for(subject).await?;
    let runs = trials.iter().map(|trial| async {
        let failure = trial.run(subject).await.err()?;
        Some((trial.name(), failure))
    });
    Ok(futures_util::future::join_all(runs).await.into_iter().flatten().collect())
}

/// The `main` of a test binary with `harness = false`: every trial of every named subject, with
/// the arguments that `cargo test` hands on.
#[must_use]
pub fn main(subjects: Vec<(&'static str, Box<dyn Subject>)>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert_with(threads);
    let mut tests = Vec::new();
    for (name, subject) in subjects {
        let subject: Arc<dyn Subject> = subject.into();
        match runtime().block_on(trials_for(&*subject)) {
            Ok(trials) => tests.extend(trials.into_iter().map(|trial| test(name, &subject, trial))),
            Err(error) => tests.push(unopened(name, error)),
        }
    }
    libtest_mimic::run(&arguments, tests).exit_code()
}

fn test(name: &str, subject: &Arc<dyn Subject>, trial: &'static Trial) -> libtest_mimic::Trial {
    let subject = Arc::clone(subject);
    libtest_mimic::Trial::test(format!("{name}/{}", trial.name()), move || {
        runtime().block_on(trial.run(&*subject)).map_err(Into::into)
    })
}

/// A subject that cannot even be opened is a failed test, not an absent one.
fn unopened(name: &str, error: dq_core::Error) -> libtest_mimic::Trial {
    libtest_mimic::Trial::test(format!("{name}/open"), move || Err(error.into()))
}

/// Trials wait for clocks and disks more than they compute.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(4, |cores| 4 * cores.get())
}

/// One for each trial, so that what a trial leaves behind ends with it. Two threads, or races
/// between tasks would never happen.
fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the machine has threads to give")
}
