//! The layer in front of every backend refuses invalid input and missing capabilities, and stores
//! nothing then.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Announcement, Backend, BrowseParams, Capabilities, Checked, Clock, Due, Error, ErrorKind,
    FencingToken, Headers, JobKey, JobRef, JobState, Lease, Limits, NewJob, OnRunning, Operation,
    QueueName, Reschedule, Result, Settlement, Timestamp, Verdict, VirtualClock,
};
use dq_testkit::fixture::{in_an_hour, job, keyed, memory, queue};

use crate::common::offering::Offering;

fn checked(capabilities: Capabilities) -> (Arc<dyn Backend>, Timestamp) {
    let clock = Arc::new(VirtualClock::new(dq_core::SystemClock.now()));
    let store = Offering { store: Arc::new(memory(clock.clone())), capabilities };
    let now = clock.now();
    (Arc::new(Checked::new(Arc::new(store), Limits::default(), clock)), now)
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T>, kind: ErrorKind, part: &str) {
    let error: Error = answer.expect_err(part);
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(part), "{part}: {error}");
}

async fn assert_empty(store: &dyn Backend) {
    let stats = store.stats(&[queue("q")]).await.unwrap();
    assert_eq!(stats[0].stored(), 0, "{stats:?}");
}

#[tokio::test]
async fn one_invalid_job_refuses_the_batch() {
    let (store, now) = checked(Capabilities::all());
    let limits = Limits::default();
    let (payload, headers) = (limits.payload + 1, limits.headers);
    let later = Duration::from_secs(3_600);
    let too_late = limits.horizon + later;
    let header = |name: &str| Headers::from_iter([(name, "x".repeat(headers))]);
    let at = |millis| Due::At(Timestamp::from_millis(millis));
    let new = || in_an_hour(job("q"));
    let cases: Vec<(NewJob, String)> = vec![
        (new().payload(Bytes::from(vec![0; payload])), payload.to_string()),
        (new().headers(header("h")), (headers + 1).to_string()),
        (new().headers(Headers::from_iter([("", "x")])), "header".into()),
        (new().headers(Headers::from_iter([("a\0b", "x")])), "header".into()),
        (new().headers(Headers::from_iter([("a\nb", "x")])), "header".into()),
        (new().due(at(-1)), "1970".into()),
        (new().due(at(i64::MIN)), "1970".into()),
        (new().due(too_late), "days ahead".into()),
        (new().due(Duration::MAX), "days ahead".into()),
        // A common mistake: microseconds.
        (new().due(at(now.as_millis() * 1_000)), "days ahead".into()),
        (new().due(Timestamp::MAX), "days ahead".into()),
        (new().max_attempts(0), "max_attempts".into()),
    ];
    for (invalid, part) in cases {
        let answer = store.schedule(vec![new(), invalid, new()]).await;
        refused(answer, ErrorKind::InvalidInput, &part);
    }
    let size = limits.bulk + 1;
    let answer = store.schedule(vec![new(); size]).await;
    refused(answer, ErrorKind::InvalidInput, &size.to_string());
    assert_empty(&*store).await;
}

#[tokio::test]
async fn invalid_calls_are_refused() {
    const INVALID: ErrorKind = ErrorKind::InvalidInput;
    let (store, _) = checked(Capabilities::all());
    let new = in_an_hour(job("q"));
    store.schedule(vec![new.clone()]).await.unwrap();
    let too_late = Due::After(Limits::default().horizon + Duration::from_secs(3_600));
    for (due, part) in [(too_late, "days ahead"), (Timestamp::from_millis(-1).into(), "1970")] {
        let job = JobRef::new(new.queue.clone(), new.id);
        refused(store.reschedule(&[Reschedule { job, due }]).await, INVALID, part);
    }
    let (queue, jobs) = (&new.queue, vec![new.id; 1_001]);
    let replay = Operation::Replay { queue, jobs: &[], due: too_late };
    refused(store.operate(replay).await, INVALID, "days ahead");
    refused(store.operate(Operation::Remove { queue, jobs: &jobs }).await, INVALID, "1001");
    for limit in [0, 1_001, usize::MAX] {
        let page = BrowseParams::new(queue, JobState::Scheduled).limit(limit);
        refused(store.browse(page).await, INVALID, "page");
    }
    let edges = [2, 1].map(Timestamp::from_millis);
    refused(store.forecast(queue, &edges).await, INVALID, "ascend");
    let info = vec![b' '; Announcement::MAX_BYTES + 1];
    let announcement = Announcement::new("a", info, Duration::from_secs(1));
    refused(store.announce(announcement).await, INVALID, "bytes");
    let next_due = store.stats(std::slice::from_ref(queue)).await.unwrap()[0].next_due;
    assert_eq!(Some(new.due), next_due.map(Due::At), "no job was moved");
}

#[test]
fn invalid_names_are_refused() {
    // Too long for a queue name and a key.
    let long = "x".repeat(QueueName::MAX_BYTES.max(JobKey::MAX_BYTES) + 1);
    for name in ["", "a\0", "\n", "\u{7f}", "\u{85}", long.as_str()] {
        refused(QueueName::new(name), ErrorKind::InvalidInput, "queue name");
        refused(JobKey::new(name), ErrorKind::InvalidInput, "key");
    }
}

#[tokio::test]
async fn calls_without_the_capability_are_refused() {
    let (store, _) = checked(Capabilities::default());
    let target = [JobRef::new(queue("q"), job("q").id)];
    let (queue, jobs) = (&queue("q"), &[job("q").id][..]);
    let unsupported = |answer: Result<String>| refused(answer, ErrorKind::Unsupported, "memory");
    macro_rules! unsupported {
        ($store:ident: $($call:ident($($argument:expr),*);)+) => {$(
            let answer = $store.$call($($argument),*).await;
            unsupported(answer.map(|answer| format!("{answer:?}")));
        )+};
    }
    let again = Verdict::Again { due: Due::NOW, payload: "next".into() };
    let lease = Lease { queue: queue.clone(), job: jobs[0], token: FencingToken(1) };
    let detaching = keyed("q", "k").on_running(OnRunning::Detach);
    let edges = [0, 1].map(Timestamp::from_millis);
    unsupported! { store:
        schedule(vec![job("q"), keyed("q", "k")]);
        schedule(vec![job("q"), job("q").remember(Duration::from_secs(1))]);
        schedule(vec![job("q"), detaching.clone()]);
        cancel(&target);
        reschedule(&[Reschedule { job: target[0].clone(), due: Due::NOW }]);
        settle(&[Settlement::new(lease.clone(), again.clone())]);
        browse(BrowseParams::new(queue, JobState::Scheduled).limit(1));
        get(&target[0]);
        operate(Operation::Replay { queue, jobs, due: Due::NOW });
        operate(Operation::Remove { queue, jobs });
        operate(Operation::Pause { queue });
        operate(Operation::Resume { queue });
        forecast(queue, &edges);
        announce(Announcement::new("a", "{}", Duration::from_secs(1)));
        runners();
    }
    let mut capabilities = Capabilities::all();
    (capabilities.detach, capabilities.history) = (false, false);
    let (store, _) = checked(capabilities);
    unsupported! { store:
        schedule(vec![job("q"), detaching]);
        browse(BrowseParams::new(queue, JobState::Ended).limit(1));
    }
    assert_empty(&*store).await;
}
