//! Faults on demand (outages, crashes at a chosen step, broken connections), and call recorders for
//! one or many processes.

mod crash_point;
mod outage;
mod proxy;
mod recorder;
mod trace_file;

pub use crash_point::{Crash, CrashPoint, CrashingSource};
pub use outage::Outage;
pub use proxy::TcpProxy;
pub use recorder::Recorder;
pub use trace_file::{LeaseBegin, read_traces};
