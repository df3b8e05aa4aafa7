//! `dq-bench horizon` for seconds: checks that the report is complete, not the figures.

use std::fs;
use std::process::Command;

#[test]
fn horizon() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_dq-bench"))
        .args(["horizon", "--seconds", "2", "--dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |extension: &str| {
        fs::read_to_string(dir.path().join("horizon-postgres").with_extension(extension)).unwrap()
    };
    let report: serde_json::Value = serde_json::from_str(&read("json")).unwrap();
    let windows = report["windows"].as_array().unwrap();
    let (before, under_snapshot) = (6, 2);
    assert_eq!(windows.len(), before + under_snapshot);
    assert_eq!(report["snapshot_at"], windows[before - 1]["end"]);
    assert!(windows.iter().any(|window| window["jobs"].as_u64() > Some(0)), "{report}");
    assert_eq!(read("svg").matches("<polyline").count(), 4);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("| lateness p99 |") && table.contains("QUICK"), "{table}");
}
