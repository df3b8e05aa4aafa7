//! All integration tests in one program, because linking takes long.

mod common;
mod ended;
mod expiry;
mod faults;
mod format;
mod import;
mod limits;
mod many_queues;
mod redisson;
mod shards;
