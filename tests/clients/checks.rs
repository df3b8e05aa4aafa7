//! Each client's own check, which builds it and runs its tests with this workspace's `dq`.

use dq_servers::maven_lock;

use crate::programs::{Sources, install};

/// One at a time beside the other tests, because the clients' tests have time limits.
#[test]
fn every_client_passes_its_check() {
    python();
    typescript();
    java();
}

fn python() {
    Sources::of("python").run(&["./check"]);
}

fn typescript() {
    let sources = Sources::of("typescript");
    install(&sources);
    sources.run(&["npm", "run", "check"]);
}

fn java() {
    let sources = Sources::of("java");
    let _lock = maven_lock();
    sources.run(&["mvn", "-B", "verify"]);
}
