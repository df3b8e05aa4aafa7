//! All integration tests in one program, because linking is what takes long.

mod objectives;
mod ops;
mod schedules;
