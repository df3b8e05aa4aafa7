//! `recurring`: reports at its occurrences, and continues after a kill.

use std::collections::BTreeSet;

use crate::program::Program;

const NAME: &str = "recurring";

/// The occurrence in a line such as `report of 2026-03-01T00:00:02.000Z, 3 ms late`.
fn occurrence(line: &str) -> String {
    let report = line.strip_prefix("report of ").unwrap_or_else(|| panic!("no report: {line}"));
    report.split_once(", ").unwrap_or_else(|| panic!("no report: {line}")).0.to_owned()
}

#[test]
fn another_process_goes_on_with_the_reports_of_one_that_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Program::start(NAME, dir.path(), &[]);
    let before = occurrence(&first.line().unwrap());
    first.kill();
    let lines = Program::start(NAME, dir.path(), &["--reports", "3"]).rest();
    let (next, reports) = lines.split_last().unwrap();
    assert!(next.starts_with("next: EXAMPLE_REPORT at "), "{lines:?}");
    let after: BTreeSet<String> = reports.iter().map(|line| occurrence(line)).collect();
    assert_eq!(after.len(), reports.len(), "each occurrence is reported once: {lines:?}");
    assert!(after.len() >= 3, "{lines:?}");
    // The first process may have been killed before its report was stored.
    assert!(after.iter().all(|time| *time >= before), "{before}, then {lines:?}");
}
