//! Listings, views and forecasts of schedules.

use dq_core::{DurationExt, Ending, JobState, Timestamp};

use crate::recurring::fixture::{QUEUE, START, World};

#[tokio::test]
async fn all_schedules_are_listed_the_next_due_first() {
    let world = World::new();
    let program = world.start(None).await;
    for (name, every) in [("b", 2.hours()), ("a", 3.hours()), ("c", 1.hours())] {
        assert!(program.dq.recurring_in("Q", name).every(every).upsert().await.unwrap());
    }
    let all = program.dq.schedules().await.unwrap();
    let names: Vec<_> = all.iter().map(|view| (view.name.as_str(), view.next_due)).collect();
    let at = |hours: u64| START + hours.hours();
    assert_eq!(names, [("c", at(1)), ("b", at(2)), ("a", at(3))]);
    assert!(all.iter().all(|view| view.generation.is_none() && !view.orphaned && !view.paused));
    assert_eq!(all[0].spec.times.to_string(), "every 1h");
}

#[tokio::test]
async fn the_view_has_the_last_occurrence_and_its_job() {
    let world = World::new();
    let program = world.start(None).await;
    let view = async || program.schedule().get().await.unwrap().unwrap();
    let last_job = async || view().await.last_job(&program.dq).await.unwrap();
    assert!(program.schedule().cron("0 3 * * *", "UTC").upsert().await.unwrap());
    assert_eq!(view().await.last_occurrence, None);
    assert!(last_job().await.is_none());

    program.run_until(4.hours()).await;
    assert_eq!(view().await.last_occurrence, Some(START + 3.hours()));
    let job = last_job().await.unwrap();
    assert_eq!((job.state, job.ended.unwrap().ending), (JobState::Ended, Ending::Done));

    // A skipped occurrence has no job.
    assert!(program.schedule().skip_next().await.unwrap());
    program.run_until(30.hours()).await;
    assert_eq!(view().await.last_occurrence, Some(START + 3.hours()));

    assert!(program.dq.queue(QUEUE).unwrap().pause().await.unwrap());
    program.run_until(52.hours()).await;
    assert_eq!(view().await.last_occurrence, Some(START + 51.hours()));
    assert_eq!(last_job().await.unwrap().state, JobState::Ready);
}

#[tokio::test]
async fn the_view_has_the_times_of_the_schedule() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = || program.schedule();
    assert!(schedule().cron("0 3 * * *", "UTC").upsert().await.unwrap());
    let spec = schedule().get().await.unwrap().unwrap().spec;
    assert_eq!((spec.cron(), spec.zone(), spec.every()), (Some("0 3 * * *"), Some("UTC"), None));
    assert!(schedule().every(90.seconds()).upsert().await.unwrap());
    let spec = schedule().get().await.unwrap().unwrap().spec;
    assert_eq!((spec.cron(), spec.every()), (None, Some(90.seconds())));
}

#[tokio::test]
async fn a_forecast_counts_occurrences_with_the_queue_of_their_jobs() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = |queue: &str, name: &str| program.dq.recurring_in(queue, name);
    assert!(schedule("A", "hourly").every(1.hours()).upsert().await.unwrap());
    assert!(schedule("A", "nightly").cron("0 2 * * *", "UTC").upsert().await.unwrap());
    assert!(schedule("B", "paused").every(1.hours()).upsert().await.unwrap());
    assert!(schedule("B", "paused").pause().await.unwrap());
    assert!(schedule("C", "weekly").cron("@weekly", "UTC").upsert().await.unwrap());
    let job = program.dq.queue("A").unwrap().schedule("1", "application/json");
    assert!(job.at(START + 2.hours()).await.unwrap().is_stored());

    let forecasts = program.dq.forecast_all(1.days()).await.unwrap();
    let [forecast] = &forecasts[..] else { panic!("{forecasts:?}") };
    assert_eq!((forecast.queue.as_str(), forecast.overdue, forecast.paused), ("A", 0, false));
    let due = |from: Timestamp| {
        let minute = forecast.minutes.iter().find(|minute| minute.from == from);
        minute.unwrap().due
    };
    assert_eq!((due(START + 1.hours()), due(START + 1.hours() + 1.minutes())), (1, 0));
    assert_eq!(due(START + 2.hours()), 3, "two occurrences and a job");
    let total: u64 = forecast.minutes.iter().map(|minute| minute.due).sum();
    assert_eq!(total, 23 + 1 + 1, "24:00 is after the window");

    // Nothing has run since, so missed occurrences are due at once.
    world.clock.set(START + 5.hours() + 30.seconds());
    assert!(program.dq.queue("A").unwrap().pause().await.unwrap());
    let forecast = program.dq.forecast_all(10.minutes()).await.unwrap().remove(0);
    assert_eq!((forecast.overdue, forecast.minutes[0].due, forecast.paused), (1, 2, true));
    assert_eq!(forecast.minutes[9].backlog, Some(3), "a paused queue is not drained");
}
