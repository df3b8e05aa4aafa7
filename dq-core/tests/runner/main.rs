//! The runner on the memory backend and a virtual clock. No test sleeps: each waits for events of
//! the runner.

mod builder;
mod drain;
mod failures;
mod faulty;
mod fixture;
mod leases;
mod logs;
mod outages;
mod run_due;
mod shutdown;
mod slots;
mod trace;
