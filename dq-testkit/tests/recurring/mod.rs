//! Schedules on the virtual clock: which occurrences run and when, after outages, changes and
//! crashes.

mod clock_changes;
mod crashes;
mod declared;
mod fixture;
mod handlers;
mod operate;
mod outages;
