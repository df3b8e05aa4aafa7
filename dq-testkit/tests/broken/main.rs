//! Backends that each break one promise: the suite must catch every one of them, and let the
//! unbroken one pass.

mod breaks;
mod history;
mod layers;
mod model;
mod subject;
mod workload;

use dq_testkit::behaviour;

use self::breaks::{BREAKS, Break};
use self::subject::Broken;

/// The names of the trials that fail.
async fn caught_by(subject: &Broken) -> Vec<String> {
    let failed = behaviour::run(subject).await.expect("the subject opens");
    failed.into_iter().map(|(name, failure)| format!("{name}: {failure}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unbroken_backend_passes() {
    let failed = caught_by(&Broken::new(|opened| opened.process)).await;
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backend_without_any_extra_passes_what_applies() {
    let failed = caught_by(&Broken::new(breaks::bare)).await;
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

// With the runtime's time paused nobody waits for a hint that was lost.
#[tokio::test(start_paused = true)]
async fn every_broken_backend_is_caught() {
    let mut escaped = Vec::new();
    for Break { name, make, caught_by: wanted, .. } in BREAKS {
        let failed = caught_by(&Broken::new(*make)).await;
        let names: Vec<_> = failed.iter().filter_map(|line| line.split(':').next()).collect();
        println!("{name}: caught by {}", names.join(", "));
        let missing = wanted.iter().filter(|trial| !names.contains(trial));
        escaped.extend(missing.map(|trial| format!("{name} escapes {trial}")));
    }
    assert!(escaped.is_empty(), "{}", escaped.join("\n"));
}
