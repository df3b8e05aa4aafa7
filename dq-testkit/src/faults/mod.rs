//! Faults on demand (outages, crashes at a chosen step, broken connections), and call recorders for
//! one or many processes.

mod crash_point;
mod journal;
mod outage;
mod proxy;
mod recorder;

pub use crash_point::{Crash, CrashPoint, CrashingSource};
pub use journal::{Journal, LeaseBegin, read_journals};
pub use outage::Outage;
pub use proxy::TcpProxy;
pub use recorder::Recorder;
