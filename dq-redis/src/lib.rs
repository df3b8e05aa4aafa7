//! Redis backends of `dq`: native, Redisson-compatible, and key expiry.
