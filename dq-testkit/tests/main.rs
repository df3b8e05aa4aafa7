//! All integration tests in one program, because linking is what takes long.

mod broken;
mod bulk;
mod checked;
mod common;
mod drain;
mod explore;
mod history;
mod import;
mod journal;
mod kit;
mod policies;
mod proxy;
mod recurring;
