//! The runner on the memory backend and a clock that the tests turn. No test sleeps: each waits
//! for what the runner says it did.

mod builder;
mod drain;
mod failures;
mod leases;
mod logs;
mod odd;
mod outages;
mod rig;
mod shutdown;
mod slots;
mod trace;
