//! Tests for the suite, the trace checker and the comparison (`dq_testkit::model`): they must
//! detect a broken backend and accept a correct one.

#[macro_use]
mod layers;
mod backends;
mod jobs;
mod leases;
mod limits;
#[cfg(feature = "proptest")]
mod model;
mod operators;
mod subject;
mod trace;
mod views;
mod workload;

use dq_testkit::behaviour;

use self::backends::{BROKEN_BACKENDS, BrokenBackend};
use self::subject::Broken;

async fn failures(subject: &Broken) -> Vec<String> {
    let failed = behaviour::run(subject).await.expect("the backend opens");
    failed.into_iter().map(|(name, failure)| format!("{name}: {failure}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_correct_backend_passes() {
    let failed = failures(&Broken::new(|opened| opened.process)).await;
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_without_capabilities_passes_the_trials_that_apply() {
    let failed = failures(&Broken::new(layers::NoCapabilities::over)).await;
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

// Paused, so that a trial does not wait in real time for a lost hint.
#[tokio::test(start_paused = true)]
async fn every_broken_backend_fails_its_trials() {
    let mut undetected = Vec::new();
    for BrokenBackend { name, add_defect, failing_trials, .. } in BROKEN_BACKENDS {
        let subject = Broken::new(*add_defect);
        let trials = behaviour::trials_for(&subject).await.expect("the backend opens");
        for wanted in *failing_trials {
            let trial = trials.iter().find(|trial| trial.name() == *wanted);
            let trial =
                trial.unwrap_or_else(|| panic!("{wanted} does not apply to a backend that {name}"));
            match trial.run(&subject).await {
                Ok(()) => undetected.push(format!("a backend that {name} passes {wanted}")),
                Err(failure) => println!("{name}: {wanted}: {failure}"),
            }
        }
    }
    assert!(undetected.is_empty(), "{}", undetected.join("\n"));
}
