//! Schedules on the virtual clock: which occurrences run and when, after outages, changes and
//! crashes.

mod backfill;
mod calls;
mod changes;
mod concurrent;
mod crashes;
mod declared;
mod fixture;
mod outages;
mod refused;
mod views;
