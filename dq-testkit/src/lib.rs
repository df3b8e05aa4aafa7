//! Test kit of `dq`.
