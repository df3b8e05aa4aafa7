//! Two processes that change one schedule at the same time.
//!
//! The effect must be as if one change had been made after the other. The tests poll the calls step
//! by step, so that each switches to the other between any two of its calls to the store.

use std::pin::Pin;
use std::time::Duration;

use dq_core::{DurationExt, Result};
use dq_testkit::faults::CrashPoint;

use crate::common::poll::poll_times;
use crate::common::stepped::Stepped;
use crate::recurring::fixture::{Program, World, hours};

/// A call ends after fewer polls, unless it retries.
const MAX_POLLS: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Pause,
    Resume,
    /// An upsert with an interval that only this caller uses.
    Upsert,
    Remove,
}

type Call = Pin<Box<dyn Future<Output = Result<bool>> + Send>>;

impl Change {
    const ALL: [Self; 4] = [Self::Pause, Self::Resume, Self::Upsert, Self::Remove];

    fn make(self, program: &Program, caller: usize) -> Call {
        let schedule = program.schedule();
        let interval = if caller == 0 { 2.hours() } else { 3.hours() };
        match self {
            Self::Pause => Box::pin(schedule.pause()),
            Self::Resume => Box::pin(schedule.resume()),
            Self::Upsert => Box::pin(schedule.every(interval).upsert()),
            Self::Remove => Box::pin(schedule.remove()),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// The answers to the callers 0 and 1.
    answers: [bool; 2],
    /// The times of the schedule, and whether it is paused.
    schedule: Option<(String, bool)>,
    runs: Vec<Duration>,
}

impl Outcome {
    async fn of(world: &World, answers: [bool; 2]) -> Self {
        let program = world.start(None).await;
        let view = program.schedule().get().await.unwrap();
        let schedule = view.map(|view| (view.spec.times.to_string(), view.paused));
        // A drained store does not say when its next job is due.
        for hour in 1..=4 {
            program.run_until(hour.hours()).await;
        }
        Self { answers, schedule, runs: world.take_runs() }
    }

    async fn in_order(changes: [Change; 2], callers: [usize; 2]) -> Self {
        let world = World::new();
        let program = world.start_hourly().await;
        let mut answers = [false; 2];
        for caller in callers {
            answers[caller] = changes[caller].make(&program, caller).await.unwrap();
        }
        Self::of(&world, answers).await
    }
}

/// Polls a call to its end. A change that meets another retries after a pause on the virtual clock.
async fn finish(world: &World, call: &mut Call) -> bool {
    loop {
        if let Some(answer) = poll_times(call, 1) {
            return answer.unwrap();
        }
        world.clock.advance(10.millis());
        tokio::task::yield_now().await;
    }
}

/// A program that switches to others before each call to the store.
async fn start_stepped(world: &World) -> Program {
    let store = Stepped::over(world.store.clone(), &CrashPoint::default(), false);
    world.start_over(store, None).await.unwrap()
}

struct Interleaved {
    outcome: Outcome,
    /// Whether each call had ended before the other one went on.
    complete: [bool; 2],
}

/// Polls the first call and then the second one a number of times, and then finishes both.
async fn interleave(changes: [Change; 2], polls: [usize; 2], is_drained: bool) -> Interleaved {
    let mut world = World::new();
    world.start_hourly().await;
    if is_drained {
        world.change_store();
    }
    let programs = [start_stepped(&world).await, start_stepped(&world).await];
    let mut calls = [0, 1].map(|caller| changes[caller].make(&programs[caller], caller));
    let mut answers = [None, None];
    for call in 0..2 {
        answers[call] = poll_times(&mut calls[call], polls[call]).map(|answer| answer.unwrap());
    }
    let complete = answers.map(|answer| answer.is_some());
    let mut finished = [false; 2];
    for call in 0..2 {
        finished[call] = match answers[call] {
            Some(answer) => answer,
            None => finish(&world, &mut calls[call]).await,
        };
    }
    Interleaved { outcome: Outcome::of(&world, finished).await, complete }
}

#[tokio::test]
async fn concurrent_changes_have_the_effect_of_one_after_the_other() {
    try_all(false).await;
}

#[tokio::test]
async fn so_they_have_while_the_store_with_the_schedule_is_drained() {
    try_all(true).await;
}

async fn try_all(is_drained: bool) {
    for first in Change::ALL {
        for second in Change::ALL {
            let changes = [first, second];
            if changes == [Change::Remove; 2] {
                // A removal completes another that is under way, and both answer `true`.
                continue;
            }
            let allowed = [
                Outcome::in_order(changes, [0, 1]).await,
                Outcome::in_order(changes, [1, 0]).await,
            ];
            let mut polls = [0, 0];
            while polls[0] < MAX_POLLS {
                let Interleaved { outcome, complete } =
                    interleave(changes, polls, is_drained).await;
                let place = format!("{changes:?} after {polls:?} polls");
                let overlap = !complete[0] && (polls[0] > 0 || !complete[1]);
                // In drained stores, a change that meets another one may be made twice.
                let is_allowed = allowed.iter().any(|allowed| match is_drained && overlap {
                    true => {
                        (&allowed.schedule, &allowed.runs) == (&outcome.schedule, &outcome.runs)
                    }
                    false => *allowed == outcome,
                });
                assert!(is_allowed, "{place}: {outcome:?} is not in {allowed:?}");
                polls = match complete {
                    [true, _] => break,
                    [false, true] => [polls[0] + 1, 0],
                    // The second call waits for the first one.
                    [false, false] if polls[1] == MAX_POLLS => [polls[0] + 1, 0],
                    [false, false] => [polls[0], polls[1] + 1],
                };
            }
            assert!(polls[0] > 1, "{first:?} makes several calls to the store");
        }
    }
}

#[tokio::test]
async fn a_removal_that_is_interrupted_has_removed_the_schedule_or_changed_nothing() {
    for polls in 0..MAX_POLLS {
        let world = World::new();
        world.start_hourly().await;
        let remover = start_stepped(&world).await;
        let ended = poll_times(&mut Change::Remove.make(&remover, 0), polls);

        let program = world.start(None).await;
        let is_removed = program.schedule().get().await.unwrap().is_none();
        program.run_until(3.hours()).await;
        let runs = world.take_runs();
        if !is_removed {
            assert!(ended.is_none(), "the removal has ended");
            assert_eq!(runs, hours([1, 2, 3]), "after {polls} polls");
            continue;
        }
        assert!(runs.is_empty(), "after {polls} polls: {runs:?}");
        assert!(program.schedule().every(2.hours()).upsert().await.unwrap(), "a new one");
        program.run_until(4.hours()).await;
        assert_eq!(world.take_runs(), hours([4]));
        if let Some(ended) = ended {
            assert!(ended.unwrap() && polls > 2, "a removal makes several calls");
            return;
        }
    }
    panic!("the removal does not end within {MAX_POLLS} polls");
}
