//! The defects that the client can have, so that a storm can be seen to fail.

use crate::run::Result;

/// What is broken in the processes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Defect {
    /// The name, which the client knows.
    pub(super) name: &'static str,
    /// How the violation begins that the judge must report.
    pub(super) finding: &'static str,
}

/// All defects of the client.
pub(super) const DEFECTS: [Defect; 10] = [
    Defect { name: "loses-jobs", finding: "promise 1: " },
    Defect { name: "exchanges-payloads", finding: "promise 1: " },
    Defect { name: "starts-early", finding: "promise 2: " },
    Defect { name: "ends-leases-early", finding: "promise 4: " },
    Defect { name: "drops-settlements", finding: "promise 4: " },
    Defect { name: "ignores-cancels", finding: "promise 5: " },
    Defect { name: "restores-replaced", finding: "promise 5: " },
    Defect { name: "forgets-failures", finding: "promise 6: " },
    Defect { name: "forgets-pins", finding: "promise 4: " },
    Defect { name: "miscounts", finding: "the counts of " },
];

/// The defect of this name.
pub(super) fn by_name(name: &str) -> Result<Defect> {
    DEFECTS.iter().find(|defect| defect.name == name).copied().ok_or_else(|| {
        let names: Vec<_> = DEFECTS.iter().map(|defect| defect.name).collect();
        format!("faults: --defect is one of {}", names.join(", "))
    })
}
