//! Faults on demand (crashes at a chosen step, broken connections), and call recorders for one or
//! many processes.

mod crash_point;
mod proxy;
mod recorder;
mod remaining;
mod trace_file;

pub use crash_point::{Crash, CrashPoint, CrashingSource};
pub use proxy::TcpProxy;
pub use recorder::Recorder;
pub use remaining::remaining;
pub use trace_file::{LeaseBegin, read_traces};
