//! Each client's own check, which builds it and runs its tests with this workspace's `dq`.

use crate::programs::{Sources, install, maven_lock};

#[test]
fn python() {
    Sources::of("python").run(&["./check"]);
}

#[test]
fn typescript() {
    let sources = Sources::of("typescript");
    install(&sources);
    sources.run(&["npm", "run", "check"]);
}

#[test]
fn java() {
    let sources = Sources::of("java");
    let _lock = maven_lock();
    sources.run(&["mvn", "-B", "verify"]);
}
