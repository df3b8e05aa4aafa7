//! The client's possible defects, which prove that a storm can fail.

use crate::run::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Defect {
    pub(super) name: &'static str,
    /// Prefix of the violation the judge must report.
    pub(super) finding: &'static str,
}

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

pub(super) fn by_name(name: &str) -> Result<Defect> {
    DEFECTS.iter().find(|defect| defect.name == name).copied().ok_or_else(|| {
        let names: Vec<_> = DEFECTS.iter().map(|defect| defect.name).collect();
        format!("faults: --defect is one of {}", names.join(", "))
    })
}
