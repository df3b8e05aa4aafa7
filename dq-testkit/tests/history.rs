//! The judge itself, on histories written by hand: sound ones are acquitted, and each kind of
//! breach is told by its clause.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Cancelled, Clock, DeadKind, DeadReason, Due, Entropy, FencingToken, Headers, Job, JobId,
    JobKey, JobRef, LeasedJob, QueueName, Receipt, Renewed, Rescheduled, Scheduled, Settled,
    Settlement, SystemClock, Target, Timestamp, Verdict,
};
use dq_testkit::history::{Clause, Event, History, Intervention, Span, What};

/// Writes a history down, one call after the other.
struct Scribe {
    events: Vec<Event>,
    order: u64,
    entropy: Entropy,
}

const T0: Timestamp = Timestamp::from_millis(1_000_000);
/// How long each lease in these histories lasts.
const LEASE: Duration = Duration::from_millis(100);

fn at(millis: u64) -> Timestamp {
    T0 + Duration::from_millis(millis)
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn key() -> JobKey {
    JobKey::new("k").unwrap()
}

impl Scribe {
    fn new() -> Self {
        Self { events: Vec::new(), order: 0, entropy: Entropy::seeded(7) }
    }

    /// A call that began and ended with nothing in between.
    fn saw(&mut self, millis: u64, what: What) {
        let span = Span { began: self.order, ended: self.order + 1, at: at(millis) };
        self.order += 2;
        self.events.push(Event { span, what });
    }

    /// The last call goes on until the next one has begun.
    fn overlap(&mut self) {
        let last = self.events.last_mut().expect("there was a call");
        last.span.ended += 1;
        self.order = last.span.began + 1;
    }

    fn new_id(&self) -> JobId {
        self.entropy.job_id(SystemClock.now())
    }

    /// Stores a job that is due then.
    fn store(&mut self, millis: u64, due: u64) -> JobId {
        let job = self.new_id();
        let answer = Some(Scheduled::Created(Receipt { id: job, due: at(due) }));
        let what = What::Scheduled { job, queue: queue(), key: None, not_before: at(due), answer };
        self.saw(millis, what);
        job
    }

    /// Stores a job with the key.
    fn keyed(&mut self, millis: u64, answer: fn(Receipt) -> Scheduled) -> JobId {
        let job = self.new_id();
        let receipt = Receipt { id: job, due: at(millis) };
        let what = What::Scheduled {
            job,
            queue: queue(),
            key: Some(key()),
            not_before: receipt.due,
            answer: Some(answer(receipt)),
        };
        self.saw(millis, what);
        job
    }

    /// Leases a job, after so many failed attempts.
    fn start_after(&mut self, millis: u64, id: JobId, token: u64, attempts: u32) {
        let job = Job {
            id,
            queue: queue(),
            key: None,
            due: T0,
            created: T0,
            payload: Bytes::new(),
            headers: Headers::new(),
            max_attempts: None,
            attempts,
            deliveries: 1,
            losses: 0,
        };
        let token = FencingToken(token);
        let leased = Box::new(LeasedJob { job, token, leased_until: at(millis) + LEASE });
        self.saw(millis, What::Started { leased, now: at(millis) });
    }

    fn start(&mut self, millis: u64, id: JobId, token: u64) {
        self.start_after(millis, id, token, 0);
    }

    fn finish(&mut self, millis: u64, job: JobId, token: u64, verdict: Verdict, answer: Settled) {
        let lease = dq_core::Lease { queue: queue(), job, token: FencingToken(token) };
        let settlement = Settlement { lease, verdict };
        self.saw(millis, What::Finished { settlement, answer: Some(answer) });
    }

    fn done(&mut self, millis: u64, job: JobId, token: u64) {
        self.finish(millis, job, token, Verdict::Done, Settled::Accepted);
    }

    fn cancel(&mut self, millis: u64, target: impl Into<Target>, answer: Cancelled) {
        let job = JobRef::new(queue(), target);
        self.saw(millis, What::Cancelled { job, answer: Some(answer) });
    }

    fn clauses(self, remaining: &[JobId]) -> Vec<Clause> {
        let breaches = History::new(self.events).judge(remaining);
        breaches.into_iter().map(|breach| breach.clause).collect()
    }
}

fn dead() -> Verdict {
    Verdict::Dead { reason: DeadReason::new(DeadKind::Rejected, "no"), failed: true }
}

#[test]
fn sound_history_is_acquitted() {
    let mut scribe = Scribe::new();
    let job = scribe.store(0, 10);
    scribe.start(10, job, 1);
    scribe.finish(20, job, 1, Verdict::Retry(Due::At(at(50))), Settled::Accepted);
    scribe.start_after(50, job, 2, 1);
    // The second lease lapses.
    scribe.start_after(150, job, 3, 1);
    scribe.finish(160, job, 2, Verdict::Done, Settled::Stale);
    scribe.done(170, job, 3);
    let waiting = scribe.store(180, 500);
    assert_eq!(scribe.clauses(&[waiting]), []);
}

#[test]
fn lost_job_is_told() {
    let mut scribe = Scribe::new();
    scribe.store(0, 10);
    assert_eq!(scribe.clauses(&[]), [Clause::NothingLost]);
}

#[test]
fn job_of_nobody_is_told() {
    let mut scribe = Scribe::new();
    let nobody = scribe.new_id();
    scribe.start(10, nobody, 1);
    assert_eq!(scribe.clauses(&[nobody]), [Clause::NothingLost]);
    let scribe = Scribe::new();
    let nobody = scribe.new_id();
    assert_eq!(scribe.clauses(&[nobody]), [Clause::NothingLost]);
}

#[test]
fn job_that_was_done_and_is_still_there_is_told() {
    let mut scribe = Scribe::new();
    let job = scribe.store(0, 0);
    scribe.start(0, job, 1);
    scribe.done(10, job, 1);
    assert_eq!(scribe.clauses(&[job]), [Clause::NothingLost]);
}

#[test]
fn early_start_is_told() {
    let mut scribe = Scribe::new();
    let job = scribe.store(0, 10);
    scribe.start(9, job, 1);
    assert_eq!(scribe.clauses(&[job]), [Clause::NeverEarly]);
}

#[test]
fn start_by_the_time_before_a_move_is_told_unless_the_move_overlaps() {
    for overlaps in [false, true] {
        let mut scribe = Scribe::new();
        let job = scribe.store(0, 10);
        let answer = Some(Rescheduled::Moved(Receipt { id: job, due: at(90) }));
        let moved = JobRef::new(queue(), job);
        scribe.saw(5, What::Moved { job: moved, not_before: at(90), answer });
        if overlaps {
            scribe.overlap();
        }
        scribe.start(10, job, 1);
        let wanted: &[Clause] = if overlaps { &[] } else { &[Clause::NeverEarly] };
        assert_eq!(scribe.clauses(&[job]), wanted);
    }
}

#[test]
fn early_retry_is_told() {
    let mut scribe = Scribe::new();
    let job = scribe.store(0, 0);
    scribe.start(0, job, 1);
    scribe.finish(10, job, 1, Verdict::Retry(Due::At(at(50))), Settled::Accepted);
    scribe.start_after(49, job, 2, 1);
    assert_eq!(scribe.clauses(&[job]), [Clause::NeverEarly]);
}

#[test]
fn two_live_leases_are_told() {
    let mut scribe = Scribe::new();
    let job = scribe.store(0, 0);
    scribe.start(0, job, 1);
    scribe.start(99, job, 2);
    assert_eq!(scribe.clauses(&[job]), [Clause::OneAtATime]);
}

#[test]
fn lease_that_was_renewed_is_live() {
    for until in [150, 250] {
        let mut scribe = Scribe::new();
        let job = scribe.store(0, 0);
        scribe.start(0, job, 1);
        let lease = dq_core::Lease { queue: queue(), job, token: FencingToken(1) };
        let answer = Some(Renewed::Until(at(until)));
        scribe.saw(50, What::Renewed { lease, until: at(until), answer });
        scribe.start(200, job, 2);
        let wanted: &[Clause] = if until > 200 { &[Clause::OneAtATime] } else { &[] };
        assert_eq!(scribe.clauses(&[job]), wanted, "renewed until {until}");
    }
}

#[test]
fn tokens_that_repeat_or_shrink_are_told() {
    for (first, second) in [(5, 5), (5, 4)] {
        let mut scribe = Scribe::new();
        let job = scribe.store(0, 0);
        scribe.start(0, job, first);
        scribe.start(300, job, second);
        assert_eq!(scribe.clauses(&[job])[0], Clause::OneAtATime, "{first} and then {second}");
    }
}

#[test]
fn stale_token_that_was_accepted_is_told() {
    let mut scribe = Scribe::new();
    let job = scribe.store(0, 0);
    scribe.start(0, job, 1);
    scribe.start(100, job, 2);
    scribe.done(110, job, 1);
    assert!(scribe.clauses(&[]).contains(&Clause::OneAtATime));
}

#[test]
fn lapsed_lease_that_was_accepted_is_told() {
    let mut scribe = Scribe::new();
    let job = scribe.store(0, 0);
    scribe.start(0, job, 1);
    scribe.done(100, job, 1);
    assert_eq!(scribe.clauses(&[]), [Clause::OneAtATime]);
}

#[test]
fn start_after_the_end_is_told() {
    let mut scribe = Scribe::new();
    let job = scribe.store(0, 0);
    scribe.start(0, job, 1);
    scribe.done(10, job, 1);
    scribe.start(20, job, 2);
    assert!(scribe.clauses(&[]).contains(&Clause::OneAtATime));
}

#[test]
fn start_after_cancel_is_told_unless_they_overlap() {
    for overlaps in [false, true] {
        let mut scribe = Scribe::new();
        let job = scribe.store(0, 0);
        scribe.cancel(1, job, Cancelled::Cancelled);
        if overlaps {
            scribe.overlap();
        }
        scribe.start(2, job, 1);
        let wanted: &[Clause] = if overlaps { &[] } else { &[Clause::SaysWhatHappened] };
        assert_eq!(scribe.clauses(&[]), wanted);
    }
}

#[test]
fn start_after_cancel_by_key_is_told() {
    let mut scribe = Scribe::new();
    let job = scribe.keyed(0, Scheduled::Created);
    scribe.cancel(1, key(), Cancelled::Cancelled);
    scribe.start(2, job, 1);
    assert_eq!(scribe.clauses(&[]), [Clause::SaysWhatHappened]);
}

#[test]
fn start_of_what_was_replaced_is_told() {
    let mut scribe = Scribe::new();
    let old = scribe.keyed(0, Scheduled::Created);
    let new = scribe.keyed(1, Scheduled::Replaced);
    scribe.start(2, old, 1);
    assert_eq!(scribe.clauses(&[new]), [Clause::SaysWhatHappened]);
}

#[test]
fn start_after_death_is_told_unless_it_was_replayed() {
    for replayed in [false, true] {
        let mut scribe = Scribe::new();
        let job = scribe.store(0, 0);
        scribe.start(0, job, 1);
        scribe.finish(10, job, 1, dead(), Settled::Accepted);
        if replayed {
            let what = Intervention::Replay { jobs: None, not_before: at(20) };
            scribe.saw(20, What::Operated { queue: queue(), what });
        }
        scribe.start(30, job, 2);
        let wanted: &[Clause] = if replayed { &[] } else { &[Clause::FailureCounted] };
        assert_eq!(scribe.clauses(&[job]), wanted);
    }
}

#[test]
fn attempts_that_are_not_counted_are_told() {
    for (counted, sound) in [(0, false), (1, true), (2, false)] {
        let mut scribe = Scribe::new();
        let job = scribe.store(0, 0);
        scribe.start(0, job, 1);
        scribe.finish(10, job, 1, Verdict::Retry(Due::At(at(10))), Settled::Accepted);
        scribe.start_after(20, job, 2, counted);
        let wanted: &[Clause] = if sound { &[] } else { &[Clause::FailureCounted] };
        assert_eq!(scribe.clauses(&[job]), wanted, "{counted} after one failure");
    }
}

#[test]
fn call_whose_answer_was_lost_is_no_breach_either_way() {
    for stored in [false, true] {
        let mut scribe = Scribe::new();
        let job = scribe.new_id();
        let what = What::Scheduled { job, queue: queue(), key: None, not_before: T0, answer: None };
        scribe.saw(0, what);
        let remaining: &[JobId] = if stored { &[job] } else { &[] };
        assert_eq!(scribe.clauses(remaining), []);
    }
}

#[test]
fn removal_explains_the_dead_only() {
    for dies in [false, true] {
        let mut scribe = Scribe::new();
        let job = scribe.store(0, 0);
        scribe.start(0, job, 1);
        if dies {
            scribe.finish(10, job, 1, dead(), Settled::Accepted);
        }
        let what = Intervention::Remove { jobs: None };
        scribe.saw(20, What::Operated { queue: queue(), what });
        let wanted: &[Clause] = if dies { &[] } else { &[Clause::NothingLost] };
        assert_eq!(scribe.clauses(&[]), wanted);
    }
}
