//! The macros of `dq`; use them through the facade.
