//! Runs the suite as a test binary or as a function.

use std::process::ExitCode;
use std::sync::Arc;

use dq_core::config::Environment;
use dq_core::{Entropy, Result};
use libtest_mimic::Arguments;
use tokio::runtime::{Builder, Runtime};

use super::failure::Failure;
use super::trial::Trial;
use super::under_test::BackendUnderTest;

/// Returns the trials that apply to a backend.
///
/// # Errors
/// If the backend cannot open its store.
pub async fn trials_for(subject: &dyn BackendUnderTest) -> Result<Vec<&'static Trial>> {
    let store = subject.prepare().await?;
    let clock = store.clock();
    let environment = Environment::new(clock.of_process(), Arc::new(Entropy::from_os()));
    let backend = store.open(&environment).await?;
    let capabilities = backend.capabilities();
    backend.close().await?;
    Ok(super::trials().filter(|trial| trial.applies(&capabilities, &clock)).collect())
}

/// Runs all trials that apply to a backend concurrently, and returns the failures by trial name.
///
/// # Errors
/// If the backend cannot open its store.
pub async fn run(subject: &dyn BackendUnderTest) -> Result<Vec<(&'static str, Failure)>> {
    let trials = trials_for(subject).await?;
    let runs = trials.iter().map(|trial| async {
        let failure = trial.run(subject).await.err()?;
        Some((trial.name(), failure))
    });
    Ok(futures_util::future::join_all(runs).await.into_iter().flatten().collect())
}

/// Runs the suite as the `main` of a test binary with `harness = false`.
///
/// Accepts the arguments of `cargo test`.
#[must_use]
pub fn main(backends: Vec<(&'static str, Box<dyn BackendUnderTest>)>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert_with(threads);
    let mut tests = Vec::new();
    // A filter such as `sqlite/virtual` leaves other stores unopened: opening may start servers.
    let filter = arguments.filter.clone().unwrap_or_default();
    let is_named = |name: &str| name.split('/').next() == filter.split('/').next();
    let names_a_store = backends.iter().any(|(name, _)| is_named(name));
    for (name, subject) in backends {
        if names_a_store && !is_named(name) {
            continue;
        }
        let subject: Arc<dyn BackendUnderTest> = subject.into();
        match runtime().block_on(trials_for(&*subject)) {
            Ok(trials) => tests.extend(trials.into_iter().map(|trial| test(name, &subject, trial))),
            Err(error) => tests.push(open_failure(name, error)),
        }
    }
    libtest_mimic::run(&arguments, tests).exit_code()
}

fn test(
    name: &str,
    subject: &Arc<dyn BackendUnderTest>,
    trial: &'static Trial,
) -> libtest_mimic::Trial {
    let subject = Arc::clone(subject);
    libtest_mimic::Trial::test(format!("{name}/{}", trial.name()), move || {
        runtime().block_on(trial.run(&*subject)).map_err(Into::into)
    })
}

fn open_failure(name: &str, error: dq_core::Error) -> libtest_mimic::Trial {
    libtest_mimic::Trial::test(format!("{name}/open"), move || Err(error.into()))
}

/// Trials mostly wait for clocks and disks.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(4, |cores| 4 * cores.get())
}

/// Dropping it ends the trial's tasks. Two threads let tasks race.
fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime starts")
}
