//! All integration tests in one program, because linking takes long.

mod actions;
mod audit;
mod fixture;
mod forecasts;
mod listings;
mod objectives;
mod schedules;
mod timeline;
