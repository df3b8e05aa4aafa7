//! Stores, crashes and single steps for several test modules.

pub(crate) mod failing;
pub(crate) mod offering;
pub(crate) mod open;
pub(crate) mod poll;
pub(crate) mod stepped;
