//! The state that results from the entries of the log.

pub(super) mod capacity;
#[cfg(test)]
mod frozen_tests;
pub(super) mod leases;
pub(super) mod producers;
pub(super) mod replica;
#[cfg(test)]
mod replica_tests;
pub(super) mod snapshot;
pub(super) mod stored;
#[cfg(test)]
mod test_log;
#[cfg(test)]
mod tests;
