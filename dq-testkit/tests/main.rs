//! All integration tests in one program, because linking takes long.

mod broken;
mod bulk;
mod checked;
mod common;
mod drain;
mod import;
mod kit;
mod policies;
mod proxy;
mod recurring;
mod trace;
mod trace_file;
