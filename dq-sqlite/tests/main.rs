//! All integration tests in one program, because linking is what takes long.

mod busy;
mod clock;
mod common;
mod files;
mod frozen;
mod group;
mod hints;
mod history;
mod many_queues;
mod orphans;
mod processes;
mod readers;
mod replaced;
mod statement;
mod store;
mod transaction;
mod versions;
