//! A schedule is refused where it is written.

use dq::prelude::*;

#[delay_handler("IMPOSSIBLE_DATE", cron = "0 0 31 2 *")]
async fn impossible_date() {}

#[delay_handler("NO_CRON", cron = "61 * * * *")]
async fn no_cron() {}

#[delay_handler("NO_HOUR", cron = "0 9-25 * * MON-FRI")]
async fn no_hour() {}

#[delay_handler("NO_DAY", cron = "0 0 * * MONDAY")]
async fn no_day() {}

#[delay_handler("TOO_FEW", cron = "0 0 * *")]
async fn too_few() {}

#[delay_handler("NO_ZONE", cron = "@daily", tz = "Stockholm")]
async fn no_zone() {}

#[delay_handler("INTERVAL_OF_ZERO", every = "0s")]
async fn interval_of_zero() {}

#[delay_handler("BOTH", cron = "@daily", every = "1m")]
async fn both() {}

#[delay_handler("NEITHER", jitter = "1m")]
async fn neither() {}

#[delay_handler("ZONE_OF_INTERVAL", every = "1m", tz = "UTC")]
async fn zone_of_interval() {}

#[delay_handler("CATCH_UP", every = "1m", catch_up = "all")]
async fn catch_up() {}

#[delay_handler("OVERLAP", every = "1m", overlap = "queue")]
async fn overlap() {}

#[delay_handler("DEADLINE", every = "1m", deadline = "0s")]
async fn deadline() {}

fn main() {}
