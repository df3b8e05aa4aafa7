//! Plays the next hours of a store on a virtual clock.
//!
//! [`Dq::simulate`](crate::Dq::simulate) copies the pending jobs and schedules, runs a discrete
//! event simulation for each queue, and returns a [`SimulationReport`].

mod call;
mod play;
mod report;

pub use call::Simulation;
pub use report::{QueueSimulation, SimulationReport};
