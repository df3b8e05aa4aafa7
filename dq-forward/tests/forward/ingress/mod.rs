//! Each message becomes exactly one job, whatever breaks on the way.

mod crashed;
mod fixture;
mod killed;
mod limits;
mod mapping;
