//! The state that results from the entries of the log.

pub(super) mod capacity;
#[cfg(test)]
mod capacity_tests;
#[cfg(test)]
mod lease_tests;
pub(super) mod leases;
pub(super) mod producers;
pub(super) mod replica;
pub(super) mod snapshot;
pub(super) mod stored;
#[cfg(test)]
mod tests;
