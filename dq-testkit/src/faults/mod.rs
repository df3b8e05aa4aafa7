//! Faults on demand: outages, crashes at a chosen step, broken connections; and a recorder of what
//! clients observe meanwhile.

mod crash_point;
mod outage;
mod proxy;
mod recorder;

pub use crash_point::{Crash, CrashPoint, CrashingSource};
pub use outage::Outage;
pub use proxy::TcpProxy;
pub use recorder::Recorder;
