//! Messages of other systems become jobs, each once, whatever breaks on the way.

mod crashed;
mod fixture;
mod killed;
mod limits;
mod mapping;
