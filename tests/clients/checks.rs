//! Each client's own check, which builds it and runs its tests with this workspace's `dq`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dq_servers::maven_lock;

use crate::programs::{Sources, install};

/// The clients' tests have time limits, so only one check at a time runs beside the other tests.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn python() {
    let _turn = turn();
    Sources::of("python").run(&["./check"]);
}

#[test]
fn typescript() {
    let _turn = turn();
    let sources = Sources::of("typescript");
    install(&sources);
    sources.run(&["npm", "run", "check"]);
}

#[test]
fn java() {
    let _turn = turn();
    let sources = Sources::of("java");
    let _lock = maven_lock();
    sources.run(&["mvn", "-B", "verify"]);
}
