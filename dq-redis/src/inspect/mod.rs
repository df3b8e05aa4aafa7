//! Calls that show what is stored: stats and forecast (`counts.rs`), browse (`browse.rs`) and get
//! (`find.rs`). All scripts requeue jobs whose lease has expired and repair damage by other programs,
//! so these calls need the primary.

mod browse;
mod counts;
mod find;
mod view;
