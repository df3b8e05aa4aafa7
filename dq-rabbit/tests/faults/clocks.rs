//! Processes with different clocks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dq_core::config::QueueSettings;
use dq_core::{Cancelled, Due, JobId, NewJob};

use crate::fixture::{
    SkewedClock, TestRunner, by_id, config, connect_with_clock, job, retry, stats, wait_until,
};

/// The jobs run for longer than a third of their leases, so these are renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_a_minute_apart_run_no_job_twice_and_cancel_none_that_runs() {
    const MINUTE: i64 = 60_000;
    const JOBS: usize = 84;
    let config = config("minutes");
    let run_time = Duration::from_secs(8);
    let settings = QueueSettings::new().concurrency(20).lease(Duration::from_secs(20));
    let (mut backends, mut runners) = (Vec::new(), Vec::new());
    for skew in [MINUTE, 0, -MINUTE] {
        let clock = Arc::new(SkewedClock(skew));
        let backend = connect_with_clock(&config, clock).await.unwrap();
        runners.push(TestRunner::start_with(&backend, &["q"], run_time, settings.clone()).await);
        backends.push(backend);
    }
    let mut answers: HashMap<JobId, Cancelled> = HashMap::new();
    let mut cancel = async |index: usize, new: &NewJob| {
        let job = [by_id(new)];
        let answer = retry(|| backends[index % 3].cancel(&job)).await[0];
        // Some are cancelled twice and are gone the second time.
        let first = answers.entry(new.id).or_insert(answer);
        assert!(*first == answer || answer == Cancelled::NotFound, "{first:?}, then {answer:?}");
    };
    let mut jobs = Vec::new();
    for index in 0..JOBS {
        let millis = if index % 6 == 0 { 3_600_000 } else { index as u64 * 37 % 2_000 };
        let mut new = job("q");
        new.due = Due::After(Duration::from_millis(millis));
        retry(|| backends[index % 3].schedule(vec![new.clone()])).await;
        jobs.push(new);
        // It waits, runs, or has ended, depending on the machine.
        if index % 2 == 1 {
            cancel(index, &jobs[index / 2]).await;
        }
    }
    // No start was awaited before, so these are all.
    let mut started = Vec::new();
    wait_until("a third of the jobs start", async || {
        started.extend(runners.iter_mut().flat_map(|it| it.unexpected_starts()));
        started.len() >= JOBS / 3
    })
    .await;
    let running: Vec<_> = jobs.iter().filter(|new| started.contains(&new.id)).collect();
    for (index, new) in running.into_iter().take(20).enumerate() {
        cancel(index, new).await;
    }
    for (index, new) in jobs.iter().enumerate().step_by(6) {
        cancel(index, new).await;
    }
    wait_until("all jobs have ended", async || stats(&*backends[1], "q").await.live() == 0).await;
    started.extend(runners.iter_mut().flat_map(|it| it.unexpected_starts()));
    let mut cancelled = 0;
    for new in &jobs {
        let starts = started.iter().filter(|id| **id == new.id).count();
        let answer = answers.get(&new.id);
        let is_cancelled = answer == Some(&Cancelled::Cancelled);
        assert_eq!(starts, usize::from(!is_cancelled), "{}: {answer:?}", new.id);
        cancelled += u64::from(is_cancelled);
    }
    assert!(answers.values().any(|answer| *answer == Cancelled::AlreadyRunning), "{answers:?}");
    let totals = stats(&*backends[0], "q").await.totals.unwrap();
    assert_eq!((totals.created, totals.cancelled), (JOBS as u64, cancelled));
    assert_eq!(totals.done, JOBS as u64 - cancelled);
}
