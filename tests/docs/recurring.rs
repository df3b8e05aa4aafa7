//! Guide: recurring jobs.

use dq::prelude::*;
use dq_testkit::TestKit;
use serde::{Deserialize, Serialize};

async fn write_report(_: Timestamp) -> dq::Result<()> {
    Ok(())
}

#[delay_handler("REPORT", cron = "30 2 * * MON-FRI", tz = "Europe/Stockholm", jitter = "5m")]
async fn report(ctx: JobContext) -> HandlerResult {
    let night = ctx.occurrence().ok_or("not scheduled")?; // 02:30, however late it runs
    write_report(night).await?;
    Ok(Outcome::Done)
}

#[derive(Serialize, Deserialize)]
struct Region {
    name: String,
}

dq::queue!(sync_region: Region = "SYNC_REGION");

async fn add_region(dq: &Dq, region: Region) -> dq::Result<()> {
    let name = format!("sync-{}", region.name);
    dq.recurring::<sync_region>(name)
        .every(90.seconds())
        .payload(region)
        .jitter(10.seconds())
        .upsert()
        .await?;
    Ok(())
}

async fn operate(dq: &Dq, from: Timestamp, to: Timestamp) -> dq::Result<()> {
    let sync = || dq.recurring::<sync_region>("sync-eu");
    println!("next: {:?}", sync().next(3).await?);
    sync().pause().await?; // those of the pause do not run later
    sync().resume().await?;
    sync().skip_next().await?;
    if let Some(scheduled) = sync().run_now().await? {
        println!("stored: {}", scheduled.is_stored());
    }
    sync().backfill(from, to).await?; // the occurrences of a time in the past
    for schedule in dq.schedules().await? {
        println!("{} {} {}", schedule.name, schedule.spec.times, schedule.next_due);
        let last = schedule.last_job(dq).await?.and_then(|job| job.ended);
        println!("last: {:?}, {last:?}", schedule.last_occurrence);
    }
    sync().remove().await?;
    Ok(())
}

#[tokio::test]
async fn the_report_is_written_on_weekdays() -> dq::Result<()> {
    let kit = TestKit::with_schedules(|runner| runner.only(["REPORT"])).await?;
    let runs = kit.advance(7.days()).await;
    assert_eq!(runs.len(), 5);
    assert!(runs.iter().all(|run| run.outcome() == "done"));
    Ok(())
}

#[tokio::test]
async fn a_schedule_is_added_and_operated() -> dq::Result<()> {
    let dq = Dq::connect("memory:").await?;
    add_region(&dq, Region { name: "eu".to_owned() }).await?;
    let now = Timestamp::from(std::time::SystemTime::now());
    assert_eq!(dq.schedules().await?.len(), 1);
    // Recent occurrences may still wait for their jitter. A backfill leaves them to the schedule.
    let until = now - 10.seconds();
    operate(&dq, until - 1.hours(), until).await?;
    assert!(dq.schedules().await?.is_empty());
    // One job from `run_now`, and one per 90 s period.
    assert_eq!(dq.queue_of::<sync_region>()?.stats().await?.live(), 41);
    Ok(())
}
