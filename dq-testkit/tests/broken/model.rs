//! The comparison of two backends, with one of them broken: what differs in an answer is found.

use std::sync::Arc;

use dq_core::{Backend, Clock, MemoryBackend, OnConflict, VirtualClock};
use dq_testkit::behaviour::Passed;
use dq_testkit::model::{self, Handle, Moment, New, Op, Which};

use super::breaks::BREAKS;
use super::subject::{Make, Opened, process};

/// A story with a key taken over, a retry, a lapse, a cancel, a death and a pause in it.
fn story() -> Vec<Op> {
    let new = |key, due| New { queue: 0, key, on_conflict: OnConflict::Replace, due };
    let now = Moment::After(0);
    let claim = |limit| Op::Claim { wants: vec![(0, 3), (1, 3)], limit, lease: 20 };
    vec![
        Op::Schedule(vec![new(None, now), new(Some(1), now), new(Some(1), now), new(None, now)]),
        claim(0),
        claim(2),
        Op::Settle(vec![(0, Handle::Retry(now)), (1, Handle::Skip)]),
        claim(2),
        Op::Wait(30),
        claim(1),
        Op::Renew(vec![0], 20),
        Op::Settle(vec![(3, Handle::Dead(true)), (0, Handle::Done)]),
        Op::Schedule(vec![new(None, Moment::After(7))]),
        Op::Cancel(vec![Which::Number(4)]),
        Op::Replay(0, None, now),
        Op::Pause(0, true),
        claim(3),
        Op::Pause(0, false),
        claim(3),
        Op::Wait(50),
        claim(6),
    ]
}

async fn compare(make: Make) -> Passed {
    let clock = Arc::new(VirtualClock::default());
    let shared_clock: Arc<dyn Clock> = clock.clone();
    let memory = || Arc::new(MemoryBackend::new(shared_clock.clone()));
    let opened = Opened { process: process(memory()), clock: clock.clone(), before: 0 };
    let reference: Arc<dyn Backend> = memory();
    model::check(reference, make(opened), clock, &story()).await
}

#[tokio::test]
async fn equal_backends_do_not_differ() {
    let passed = compare(|opened| opened.process).await;
    assert_eq!(passed, Ok(()));
}

#[tokio::test]
async fn broken_backends_differ() {
    // What only a race, a crash or a sleeper sees is not in one caller's answers.
    let unseen = [
        "loses jobs in a crash",
        "leases one job twice in a race",
        "accepts stale tokens",
        "purges what resembles the queue",
        "loses every hint",
        "moves jobs that run",
        "renews whatever it is asked to",
    ];
    for broken in BREAKS.iter().filter(|broken| !unseen.contains(&broken.name)) {
        assert!(compare(broken.make).await.is_err(), "{} is not found", broken.name);
    }
}
