//! The program prints its usage.

use std::process::Command;

#[test]
fn without_arguments_it_fails() {
    let output = Command::new(env!("CARGO_BIN_EXE_dq-faults-client")).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("usage"));
}
