//! The defects that the client can have, so that a storm can be seen to fail.

use crate::run::Result;

/// What is broken in the processes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Defect {
    /// The name, which the client knows.
    pub(super) name: &'static str,
    /// The number of the promise that is violated.
    pub(super) promise: u8,
}

/// All defects of the client.
pub(super) const DEFECTS: [Defect; 6] = [
    Defect { name: "loses-jobs", promise: 1 },
    Defect { name: "starts-early", promise: 2 },
    Defect { name: "ends-leases-early", promise: 4 },
    Defect { name: "drops-settlements", promise: 4 },
    Defect { name: "ignores-cancels", promise: 5 },
    Defect { name: "forgets-failures", promise: 6 },
];

/// The defect of this name.
pub(super) fn by_name(name: &str) -> Result<Defect> {
    DEFECTS.iter().find(|defect| defect.name == name).copied().ok_or_else(|| {
        let names: Vec<_> = DEFECTS.iter().map(|defect| defect.name).collect();
        format!("faults: --defect is one of {}", names.join(", "))
    })
}
