//! Schedules on the virtual clock: which occurrences run and when, after outages, changes and
//! crashes.
#![cfg(feature = "suite")]

mod clock_changes;
mod crashes;
mod declared;
mod fixture;
mod handlers;
#[path = "../common/open.rs"]
mod open;
mod operate;
mod outages;
#[path = "../common/stepped.rs"]
mod stepped;
