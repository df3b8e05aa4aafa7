//! Each client's own check, which builds it and runs its tests with this workspace's `dq`.

use std::sync::{Mutex, PoisonError};

use crate::programs::{Sources, install, maven_lock};

/// The clients' tests have time limits, so only one check at a time runs beside the other tests.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn python() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Sources::of("python").run(&["./check"]);
}

#[test]
fn typescript() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let sources = Sources::of("typescript");
    install(&sources);
    sources.run(&["npm", "run", "check"]);
}

#[test]
fn java() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let sources = Sources::of("java");
    let _lock = maven_lock();
    sources.run(&["mvn", "-B", "verify"]);
}
