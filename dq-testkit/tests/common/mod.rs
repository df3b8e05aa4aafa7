//! Stores and stepped clocks for several test modules.

pub(crate) mod open;
pub(crate) mod stepped;
