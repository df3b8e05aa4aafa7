//! Read models and actions on the memory store, with a virtual clock.

mod actions;
mod audit;
mod fixture;
mod listings;
mod timeline;
