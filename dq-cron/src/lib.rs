//! Times of recurring jobs: cron expressions in time zones, and intervals.
//!
//! This crate only computes: it reads no clock, file or environment variable. The time zone
//! database is compiled in, so all hosts compute the same times.
//!
//! ```
//! use dq_cron::{Cron, Times};
//!
//! let nightly = Times::from(Cron::new("30 2 * * *", "Europe/Stockholm")?);
//! // 2026-03-29: the clock goes from 02:00 to 03:00, so 02:30 does not exist.
//! let at = |text: &str| text.parse::<jiff::Timestamp>().map(|time| time.as_millisecond());
//! assert_eq!(nightly.next_after(at("2026-03-28T12:00Z")?), Some(at("2026-03-29T01:00Z")?));
//! assert_eq!(nightly.next_after(at("2026-03-29T01:00Z")?), Some(at("2026-03-30T00:30Z")?));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Times are milliseconds since 1970-01-01T00:00Z.

mod cron;
mod error;
mod interval;
mod times;
mod zone;

pub use self::cron::Cron;
pub use self::error::{Error, ErrorKind};
pub use self::interval::Interval;
pub use self::times::Times;
