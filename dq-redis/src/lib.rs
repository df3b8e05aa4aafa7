//! Redis backends of `dq`: native, Redisson-compatible, and key expiry.

mod redisson;

pub use redisson::{Codec, Format};
