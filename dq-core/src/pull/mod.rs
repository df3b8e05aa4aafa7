//! Workers in other processes and languages: they claim, renew and settle jobs by calls.
//!
//! A [`PullServer`] claims for all its waiting workers together, as one runner: `line` keeps who
//! waits and deals out jobs, `workers` knows who runs which job. A `lease` has what a settlement
//! needs, so a lease outlives the server's restart.

mod lease;
mod line;
mod server;
mod workers;

pub use lease::{Loss, PullLease, PullOutcome, PullRenewed, PullSettled};
pub use line::{Pulled, PulledJob};
pub use server::{PullRequest, PullServer};
