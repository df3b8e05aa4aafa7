//! Guide: inspecting and operating.

use dq::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Meeting {
    id: u64,
    start: Timestamp,
}

dq::queue!(remind: Meeting = "REMIND");

fn queues(dq: &Dq) -> dq::Result<[dq::QueueHandle; 2]> {
    Ok([dq.queue_of::<remind>()?, dq.queue("REMIND")?])
}

async fn report(dq: &Dq, now: Timestamp) -> dq::Result<()> {
    for stats in dq.stats().await? {
        let waiting = stats.scheduled + stats.ready;
        println!("{}: {waiting} wait, {} run, {} are dead", stats.queue, stats.running, stats.dead);
    }
    let edges: Vec<_> = (0..=24).map(|hour| now + hour.hours()).collect();
    let by_hour = dq.forecast::<remind>(&edges).await?;
    println!("reminders in each of the next 24 hours: {by_hour:?}");
    for queue in dq.forecast_all(24.hours()).await? {
        println!("{queue}"); // REMIND: 41000 due at 2026-11-22T10:30:00Z, drained by 2026-11-22T10:34:00Z
    }
    Ok(())
}

async fn tonight(dq: &Dq, clock_change: Timestamp) -> dq::Result<()> {
    println!("{}", dq.simulate(24.hours()).await?);

    let twice = dq.simulate(24.hours()).load(2).concurrency("REMIND", 32).await?;
    for queue in &twice.queues {
        println!("{}: {:?} late, {} wait", queue.queue, queue.lateness_p99, queue.backlog);
    }

    let night = dq.simulate(12.hours()).start(clock_change);
    println!("{}", night.default_run_time(300.millis()).default_concurrency(8).await?);
    Ok(())
}

async fn meetings_until(dq: &Dq, noon: Timestamp) -> dq::Result<()> {
    let queue = dq.queue_of::<remind>()?;
    let filter = dq::Filter::new().key_prefix("meeting-").due(..noon);
    let mut next = None;
    loop {
        let page = queue.browse(JobState::Scheduled).filter(filter.clone()).after(next).await?;
        for view in &page.jobs {
            let meeting: Meeting = view.payload()?;
            println!("{} is due at {}", meeting.id, view.job.due);
        }
        next = page.next;
        if next.is_none() {
            return Ok(());
        }
    }
}

async fn days_called_off(dq: &Dq, meetings: &[Meeting]) -> dq::Result<()> {
    let keys = meetings.iter().map(|meeting| format!("meeting-{}", meeting.id));
    let answers = dq.queue_of::<remind>()?.cancel_many(keys).await?;
    for (meeting, answer) in meetings.iter().zip(answers) {
        if answer == Cancelled::AlreadyRunning {
            println!("the reminder of meeting {} is on its way already", meeting.id);
        }
    }
    Ok(())
}

async fn meetings_moved(dq: &Dq, meetings: &[Meeting]) -> dq::Result<usize> {
    let moves = meetings.iter().map(|meeting| {
        let due = meeting.start - 10.minutes();
        (format!("meeting-{}", meeting.id), due)
    });
    let answers = dq.queue_of::<remind>()?.reschedule_many(moves).await?;
    Ok(answers.iter().filter(|answer| matches!(answer, Rescheduled::Moved(_))).count())
}

async fn shop_closes(dq: &Dq) -> dq::Result<()> {
    let queue = dq.queue_of::<remind>()?;
    let cancelled = queue
        .cancel_where(dq::Filter::new().key_prefix("meeting-"))
        .on_progress(|progress| println!("{} of {}", progress.changed, progress.examined))
        .await?;
    println!("{cancelled} reminders are cancelled");
    Ok(())
}

async fn provider_is_down(dq: &Dq) -> dq::Result<u64> {
    let failed = dq::Filter::new().error("connection refused");
    dq.queue_of::<remind>()?.reschedule_where(failed, 1.hours()).await
}

async fn provider_is_back(dq: &Dq) -> dq::Result<u64> {
    let queue = dq.queue_of::<remind>()?;
    for view in queue.browse(JobState::Dead).limit(20).await?.jobs {
        if let Some((reason, since)) = view.dead {
            println!("{} is dead since {since}: {reason}", view.job.id);
        }
    }
    queue.replay_where(dq::Filter::new().error("connection refused")).await
}

async fn who_runs(dq: &Dq) -> dq::Result<()> {
    for runner in dq.runners().await? {
        match runner.info {
            Ok(info) => {
                println!("{} on {} runs {} jobs", runner.name, info.host, info.running);
                for queue in info.queues {
                    println!("  {}: p99 {:?} late", queue.queue, queue.lateness.quantile(0.99));
                }
            }
            Err(unreadable) => println!("{}: {}", runner.name, unreadable.error),
        }
    }
    for finding in dq.check().await {
        println!("{finding}");
    }
    Ok(())
}

#[tokio::test]
async fn the_functions_of_the_page_do_what_it_says() -> dq::Result<()> {
    let dq = Dq::connect("memory:").await?;
    let now = Timestamp::from(std::time::SystemTime::now());
    let mut meetings = [1, 2, 3].map(|id| Meeting { id, start: now + 90.minutes() });
    for meeting in &meetings {
        let job = dq.schedule::<remind>(meeting.clone()).at(meeting.start - 10.minutes());
        assert!(job.key(format!("meeting-{}", meeting.id)).await?.is_stored());
    }
    let [queue, same] = queues(&dq)?;
    assert_eq!(queue.name(), same.name());
    report(&dq, now).await?;
    meetings_until(&dq, now + 3.hours()).await?;
    who_runs(&dq).await?;

    meetings.iter_mut().for_each(|meeting| meeting.start = now + 2.days());
    assert_eq!(meetings_moved(&dq, &meetings).await?, 3);
    days_called_off(&dq, &meetings[..1]).await?;
    assert_eq!(queue.stats().await?.scheduled, 2);
    assert_eq!(provider_is_down(&dq).await?, 0, "no job has failed");
    assert_eq!(provider_is_back(&dq).await?, 0, "no job is dead");
    shop_closes(&dq).await?;
    assert_eq!(queue.stats().await?.scheduled, 0);
    tonight(&dq, now + 10.days()).await?;
    Ok(())
}
