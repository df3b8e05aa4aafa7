//! The runner on the memory backend and a virtual clock. No test sleeps: each waits for events of the
//! runner.

mod builder;
mod drain;
mod failures;
mod leases;
mod logs;
mod faulty;
mod outages;
mod fixture;
mod shutdown;
mod slots;
mod trace;
