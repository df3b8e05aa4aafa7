//! Runner announcements, and an idle runner's calls.

use dq_core::config::QueueSettings;
use dq_core::{
    Announcement, Backend, Clock, DurationExt, Outcome, Priority, RegisteredRunner, RunnerInfo,
};

use crate::runner::faulty::Faults;
use crate::runner::fixture::{Fixture, QUEUE, TestHandler, finished};

async fn runners(fixture: &Fixture) -> Vec<RegisteredRunner> {
    fixture.dq.runners().await.unwrap()
}

async fn announced(fixture: &Fixture) -> RunnerInfo {
    fixture.pass(15.seconds()).await;
    runners(fixture).await.remove(0).info.unwrap()
}

#[tokio::test]
async fn a_runner_is_listed_with_its_queues_and_recent_runs_until_it_stops() {
    let mut fixture = Fixture::new().await;
    let started = fixture.clock.now();
    let handler = TestHandler::new(async |job, payload| {
        match payload.as_str() {
            "stays" => job.cancelled().await,
            "fails" => return Err("no luck".into()),
            _ => {}
        }
        job.sleep(2.seconds()).await;
        Ok(Outcome::Done)
    });
    let handler = handler.with(QueueSettings::new().priority(Priority::High).reserve(3));
    fixture.start(|runner| runner.name("mail").concurrency(9).handler(handler));
    fixture.pass(1.seconds()).await;
    let listed = runners(&fixture).await;
    assert_eq!(listed.len(), 1);
    assert!(listed[0].name.starts_with("mail-"), "{}", listed[0].name);
    assert!(listed[0].announced_at.since(started) < 1.seconds(), "at start");
    let info = listed[0].info.as_ref().unwrap();
    assert_eq!((info.pid, info.started, info.concurrency), (std::process::id(), started, 9));
    assert!(!info.version.is_empty());
    assert_eq!((info.queues[0].queue.as_str(), info.queues[0].concurrency), (QUEUE, 16));
    assert_eq!((info.queues[0].priority, info.queues[0].reserve), (Priority::High, 3));
    assert_eq!((info.running, info.queues[0].lateness.count()), (0, 0));

    fixture.schedule("stays").await;
    fixture.schedule("done").await;
    fixture.advance_until(100.millis(), &finished("Done")).await;
    let info = announced(&fixture).await;
    let queue = &info.queues[0];
    assert_eq!((info.running, queue.running, info.skew_ms), (1, 1, Some(0)));
    assert_eq!((queue.lateness.count(), queue.failed), (1, 0));
    let run_time = queue.run_time.quantile(1.0).unwrap();
    assert!((2.seconds()..3.seconds()).contains(&run_time), "{run_time:?}");

    let job = fixture.queue().schedule("\"x\"", "application/json");
    assert!(job.after(5.minutes()).await.unwrap().is_stored());
    let forecast = fixture.dq.forecast_all(10.minutes()).await.unwrap().remove(0);
    let capacity = forecast.capacity.unwrap();
    assert!((200.0..300.0).contains(&capacity), "{capacity} jobs in a minute");
    let peak = forecast.peak().unwrap();
    assert_eq!((peak.due, peak.backlog), (1, Some(0)));
    assert_eq!(peak.drained_by, Some(peak.from + 1.minutes()));

    fixture.schedule("fails").await;
    fixture.advance_until(100.millis(), &finished("Retry")).await;
    let failed = announced(&fixture).await.queues[0].failed;
    assert!(failed >= 1, "{failed}: it may have run again meanwhile");

    fixture.stop_by(100.millis()).await;
    assert_eq!(runners(&fixture).await, []);
}

#[tokio::test]
async fn an_unreadable_announcement_is_listed_by_name_with_its_bytes() {
    let fixture = Fixture::new().await;
    let foreign = Announcement::new("other", "not JSON", 1.minutes());
    Backend::announce(&**fixture.dq.backend(), foreign).await.unwrap();
    let listed = runners(&fixture).await;
    assert_eq!(listed[0].name, "other");
    let unreadable = listed[0].info.as_ref().unwrap_err();
    assert_eq!(unreadable.raw, "not JSON");
    assert!(unreadable.error.contains("line 1"), "{}", unreadable.error);
}

#[tokio::test]
async fn a_runner_is_listed_until_three_announcements_were_not_answered() {
    let faults = Faults { announcements_hang: true, ..Faults::default() };
    let mut fixture = Fixture::faulty(faults).await;
    fixture.run(TestHandler::done());
    fixture.pass(56.seconds()).await;
    assert_eq!(fixture.store.calls("announce"), 4);
    assert_eq!(runners(&fixture).await.len(), 1);
    fixture.pass(6.seconds()).await;
    assert_eq!(runners(&fixture).await, []);
    fixture.abort().await;
}

#[tokio::test]
async fn an_idle_runner_makes_at_most_eleven_calls_in_ten_seconds_and_announces_itself_if_it_can() {
    for (lacks_registry, wanted) in [(false, 20..=21), (true, 0..=0)] {
        let mut fixture = Fixture::faulty(Faults { lacks_registry, ..Faults::default() }).await;
        fixture.run(TestHandler::done());
        fixture.pass(5.minutes()).await;
        let [claims, counts, announcements] =
            ["claim", "stats", "announce"].map(|method| fixture.store.calls(method));
        assert!(wanted.contains(&announcements), "{announcements}");
        let calls = claims + counts + announcements;
        assert!((280..=330).contains(&calls), "{calls} calls in 300 s");
        fixture.stop().await;
    }
}
