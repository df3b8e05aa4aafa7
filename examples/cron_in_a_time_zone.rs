//! Cron in a time zone, on the days when its clock changes.
//!
//! ```sh
//! cargo run -p dq-examples --example cron_in_a_time_zone
//! ```

use std::sync::Arc;

use dq::VirtualClock;
use dq::prelude::*;

/// A fixed time runs once a day: if the clock skips it, then at the first instant after the gap; if
/// the clock repeats it, then only the first time.
#[delay_handler("NIGHTLY_REPORT", cron = "30 2 * * *", tz = "Europe/Stockholm")]
async fn nightly_report(ctx: JobContext) -> HandlerResult {
    // The occurrence, however late the job runs.
    let night = ctx.occurrence().ok_or("not the job of a schedule")?;
    println!("report of {night}");
    Ok(Outcome::Done)
}

/// If the minute or the hour starts with `*`, the times follow the wall clock: never in a skipped
/// hour, and twice in a repeated one.
#[delay_handler("POLL_PRICES", cron = "*/30 2 * * *", tz = "Europe/Stockholm")]
async fn poll_prices() {}

#[tokio::main]
async fn main() -> HandlerResult<()> {
    for (clock_change, midnight) in [
        ("2026-03-29, from 02:00 to 03:00", 1_774_652_400_000),
        ("2026-10-25, from 03:00 to 02:00", 1_792_792_800_000),
    ] {
        let the_day_before = Timestamp::from_millis(midnight);
        // Only to start on that day: without `clock`, the time is now.
        let clock = Arc::new(VirtualClock::new(the_day_before));
        let dq = Dq::builder().url("memory:").clock(clock).connect().await?;
        // Stores the schedules and runs the due jobs, once. A service uses
        // `dq.runner().run_until(dq::shutdown_signal())`.
        dq.runner().build()?.run_due().await?;

        println!("In Stockholm, the clock changes on {clock_change}. Three days, in UTC:");
        for schedule in dq.schedules().await? {
            let next = dq.recurring_in(&schedule.spec.queue, &schedule.name).next(10).await?;
            for time in next.iter().take_while(|time| **time < the_day_before + 3.days()) {
                println!("{}: {time}", schedule.name);
            }
        }
    }
    Ok(())
}
