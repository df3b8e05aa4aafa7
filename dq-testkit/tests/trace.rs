//! The trace checker accepts valid traces, and reports each violation with its promise.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{Clock, Entropy, JobId, JobKey, QueueName, SystemClock, Timestamp};
use dq_testkit::trace::{
    Interval, ObservedCall, ObservedTarget, ObservedVerdict as Verdict, OperatorAction, Promise,
    ScheduleAnswer, Trace, TraceEvent,
};

struct HistoryBuilder {
    events: Vec<TraceEvent>,
    next_position: u64,
    entropy: Entropy,
}

/// Times in the tests are milliseconds after it.
const T0: Timestamp = Timestamp::from_millis(1_000_000);
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

impl HistoryBuilder {
    fn new() -> Self {
        Self { events: Vec::new(), next_position: 0, entropy: Entropy::seeded(7) }
    }

    /// The call overlaps no other.
    fn add(&mut self, millis: u64, call: ObservedCall) {
        let invoked = self.next_position;
        let (at, returned_at) = (at(millis), at(millis));
        let interval = Interval { invoked, returned: invoked + 1, at, returned_at };
        self.next_position += 2;
        self.events.push(TraceEvent { interval, call });
    }

    /// The next call is invoked before the last one returns.
    fn overlap_next(&mut self) {
        let last = self.events.last_mut().expect("there was a call");
        last.interval.returned += 1;
        self.next_position = last.interval.invoked + 1;
    }

    fn new_id(&self) -> JobId {
        self.entropy.job_id(SystemClock.now())
    }

    fn schedule(&mut self, millis: u64, due: u64) -> JobId {
        let job = self.new_id();
        self.add(millis, scheduling(job, due, Some(ScheduleAnswer::Created)));
        job
    }

    fn schedule_keyed(&mut self, millis: u64, detaches: bool, answered: ScheduleAnswer) -> JobId {
        let job = self.new_id();
        let mut call = scheduling(job, millis, Some(answered));
        if let ObservedCall::Schedule { key: of_job, detach, .. } = &mut call {
            (*of_job, *detach) = (Some(key()), detaches);
        }
        self.add(millis, call);
        job
    }

    fn claim_with(&mut self, millis: u64, job: JobId, token: u64, attempts: u32, payload: &str) {
        let (now, until) = (at(millis), at(millis) + LEASE);
        let payload = Bytes::from(payload.to_owned());
        self.add(
            millis,
            ObservedCall::Claim { now, job, due: T0, attempts, payload, token, until },
        );
    }

    fn claim(&mut self, millis: u64, job: JobId, token: u64) {
        self.claim_with(millis, job, token, 0, "");
    }

    fn settle(&mut self, millis: u64, job: JobId, token: u64, verdict: Verdict) {
        self.settle_with(millis, job, token, verdict, Some(true));
    }

    fn settle_with(
        &mut self,
        millis: u64,
        job: JobId,
        token: u64,
        verdict: Verdict,
        accepted: Option<bool>,
    ) {
        self.add(millis, ObservedCall::Settle { job, token, verdict, accepted });
    }

    fn done(&mut self, millis: u64, job: JobId, token: u64) {
        self.settle(millis, job, token, Verdict::Done);
    }

    fn cancel(&mut self, millis: u64, job: ObservedTarget) {
        self.add(millis, ObservedCall::Cancel { job, cancelled: Some(true) });
    }

    fn operate(&mut self, millis: u64, action: OperatorAction) {
        self.add(millis, ObservedCall::Operate { queue: queue(), action });
    }

    fn violated(self, remaining: &[JobId]) -> Vec<Promise> {
        let violations = Trace::new(self.events).check(remaining);
        violations.into_iter().map(|violation| violation.promise).collect()
    }
}

/// Without a key, pin and payload.
fn scheduling(job: JobId, due: u64, answer: Option<ScheduleAnswer>) -> ObservedCall {
    ObservedCall::Schedule {
        job,
        queue: queue(),
        key: None,
        detach: false,
        remember: Duration::ZERO,
        not_before: at(due),
        payload: Some(Bytes::new()),
        answer,
    }
}

#[test]
fn a_valid_history_passes() {
    let mut trace = HistoryBuilder::new();
    let job = trace.schedule(0, 10);
    trace.claim(10, job, 1);
    trace.settle(20, job, 1, Verdict::Retry(at(50)));
    trace.claim_with(50, job, 2, 1, "");
    // The second lease expires.
    trace.claim_with(150, job, 3, 1, "");
    trace.settle_with(160, job, 2, Verdict::Done, Some(false));
    trace.done(170, job, 3);
    let waiting = trace.schedule(180, 500);
    assert_eq!(trace.violated(&[waiting]), []);
}

#[test]
fn a_lost_job_is_reported() {
    let mut trace = HistoryBuilder::new();
    trace.schedule(0, 10);
    assert_eq!(trace.violated(&[]), [Promise::NothingLost]);
}

#[test]
fn a_job_that_was_never_scheduled_is_reported() {
    let mut trace = HistoryBuilder::new();
    let unknown = trace.new_id();
    trace.claim(10, unknown, 1);
    assert_eq!(trace.violated(&[unknown]), [Promise::NothingLost]);
    let trace = HistoryBuilder::new();
    let unknown = trace.new_id();
    assert_eq!(trace.violated(&[unknown]), [Promise::NothingLost]);
}

#[test]
fn a_finished_job_that_is_still_stored_is_reported() {
    let mut trace = HistoryBuilder::new();
    let job = trace.schedule(0, 0);
    trace.claim(0, job, 1);
    trace.done(10, job, 1);
    assert_eq!(trace.violated(&[job]), [Promise::NothingLost]);
}

#[test]
fn an_early_start_is_reported() {
    let mut trace = HistoryBuilder::new();
    let job = trace.schedule(0, 10);
    trace.claim(9, job, 1);
    assert_eq!(trace.violated(&[job]), [Promise::NeverEarly]);
}

#[test]
fn a_start_at_the_old_due_time_is_reported_unless_the_reschedule_overlaps() {
    for overlaps in [false, true] {
        let mut trace = HistoryBuilder::new();
        let job = trace.schedule(0, 10);
        let (target, moved) = (ObservedTarget::Id(job), Some(Some(job)));
        trace.add(5, ObservedCall::Reschedule { job: target, not_before: at(90), moved });
        if overlaps {
            trace.overlap_next();
        }
        trace.claim(10, job, 1);
        let wanted: &[Promise] = if overlaps { &[] } else { &[Promise::NeverEarly] };
        assert_eq!(trace.violated(&[job]), wanted);
    }
}

#[test]
fn an_early_retry_is_reported() {
    let mut trace = HistoryBuilder::new();
    let job = trace.schedule(0, 0);
    trace.claim(0, job, 1);
    trace.settle(10, job, 1, Verdict::Retry(at(50)));
    trace.claim_with(49, job, 2, 1, "");
    assert_eq!(trace.violated(&[job]), [Promise::NeverEarly]);
}

#[test]
fn two_live_leases_are_reported() {
    let mut trace = HistoryBuilder::new();
    let job = trace.schedule(0, 0);
    trace.claim(0, job, 1);
    trace.claim(99, job, 2);
    assert_eq!(trace.violated(&[job]), [Promise::OneLeaseAtATime]);
}

#[test]
fn a_renewed_lease_is_live_until_its_new_end() {
    for until in [150, 250] {
        let mut trace = HistoryBuilder::new();
        let job = trace.schedule(0, 0);
        trace.claim(0, job, 1);
        let held = Some(true);
        trace.add(50, ObservedCall::Renew { job, token: 1, until: at(until), held });
        trace.claim(200, job, 2);
        let wanted: &[Promise] = if until > 200 { &[Promise::OneLeaseAtATime] } else { &[] };
        assert_eq!(trace.violated(&[job]), wanted, "renewed until {until}");
    }
}

#[test]
fn tokens_that_do_not_grow_are_reported() {
    for (first, second) in [(5, 5), (5, 4)] {
        let mut trace = HistoryBuilder::new();
        let job = trace.schedule(0, 0);
        trace.claim(0, job, first);
        trace.claim(300, job, second);
        assert_eq!(
            trace.violated(&[job])[0],
            Promise::OneLeaseAtATime,
            "{first} and then {second}"
        );
    }
}

#[test]
fn an_accepted_settlement_with_a_stale_token_is_reported() {
    let mut trace = HistoryBuilder::new();
    let job = trace.schedule(0, 0);
    trace.claim(0, job, 1);
    trace.claim(100, job, 2);
    trace.done(110, job, 1);
    assert!(trace.violated(&[]).contains(&Promise::OneLeaseAtATime));
}

#[test]
fn an_accepted_settlement_at_the_end_of_the_lease_is_reported() {
    let mut trace = HistoryBuilder::new();
    let job = trace.schedule(0, 0);
    trace.claim(0, job, 1);
    trace.done(100, job, 1);
    assert_eq!(trace.violated(&[]), [Promise::OneLeaseAtATime]);
}

#[test]
fn a_start_of_a_finished_job_is_reported() {
    let mut trace = HistoryBuilder::new();
    let job = trace.schedule(0, 0);
    trace.claim(0, job, 1);
    trace.done(10, job, 1);
    trace.claim(20, job, 2);
    assert!(trace.violated(&[]).contains(&Promise::OneLeaseAtATime));
}

#[test]
fn a_start_after_a_cancel_is_reported_unless_they_overlap() {
    for overlaps in [false, true] {
        let mut trace = HistoryBuilder::new();
        let job = trace.schedule(0, 0);
        trace.cancel(1, ObservedTarget::Id(job));
        if overlaps {
            trace.overlap_next();
        }
        trace.claim(2, job, 1);
        let wanted: &[Promise] = if overlaps { &[] } else { &[Promise::CancelIsBinding] };
        assert_eq!(trace.violated(&[]), wanted);
    }
}

#[test]
fn a_start_after_a_cancel_by_key_is_reported() {
    let mut trace = HistoryBuilder::new();
    let job = trace.schedule_keyed(0, false, ScheduleAnswer::Created);
    trace.cancel(1, ObservedTarget::Key(queue(), key()));
    trace.claim(2, job, 1);
    assert_eq!(trace.violated(&[]), [Promise::CancelIsBinding]);
}

#[test]
fn a_start_of_a_replaced_job_is_reported() {
    for detach in [false, true] {
        let mut trace = HistoryBuilder::new();
        let old = trace.schedule_keyed(0, false, ScheduleAnswer::Created);
        let new = trace.schedule_keyed(1, detach, ScheduleAnswer::Replaced);
        trace.claim(2, old, 1);
        assert_eq!(trace.violated(&[new]), [Promise::CancelIsBinding], "detach: {detach}");
    }
}

#[test]
fn a_start_of_a_dead_job_is_reported_unless_it_was_replayed() {
    for replayed in [false, true] {
        let mut trace = HistoryBuilder::new();
        let job = trace.schedule(0, 0);
        trace.claim(0, job, 1);
        trace.settle(10, job, 1, Verdict::Dead);
        if replayed {
            let action = OperatorAction::Replay { jobs: vec![job], not_before: at(20) };
            trace.operate(20, action);
        }
        trace.claim(30, job, 2);
        let wanted: &[Promise] = if replayed { &[] } else { &[Promise::FailuresCounted] };
        assert_eq!(trace.violated(&[job]), wanted);
    }
}

#[test]
fn a_wrong_count_of_attempts_is_reported() {
    for (counted, valid) in [(0, false), (1, true), (2, false)] {
        let mut trace = HistoryBuilder::new();
        let job = trace.schedule(0, 0);
        trace.claim(0, job, 1);
        trace.settle(10, job, 1, Verdict::Retry(at(10)));
        trace.claim_with(20, job, 2, counted, "");
        let wanted: &[Promise] = if valid { &[] } else { &[Promise::FailuresCounted] };
        assert_eq!(trace.violated(&[job]), wanted, "attempts {counted} after one failure");
    }
}

#[test]
fn a_call_whose_answer_was_lost_may_or_may_not_have_taken_effect() {
    for stored in [false, true] {
        let mut trace = HistoryBuilder::new();
        let job = trace.new_id();
        trace.add(0, scheduling(job, 0, None));
        let remaining: &[JobId] = if stored { &[job] } else { &[] };
        assert_eq!(trace.violated(remaining), []);
    }
}

#[test]
fn a_removal_explains_only_that_dead_jobs_are_gone() {
    for dies in [false, true] {
        let mut trace = HistoryBuilder::new();
        let job = trace.schedule(0, 0);
        trace.claim(0, job, 1);
        if dies {
            trace.settle(10, job, 1, Verdict::Dead);
        }
        let action = OperatorAction::Remove { jobs: vec![job] };
        trace.operate(20, action);
        let wanted: &[Promise] = if dies { &[] } else { &[Promise::NothingLost] };
        assert_eq!(trace.violated(&[]), wanted);
    }
}

#[test]
fn a_next_step_counts_failed_attempts_from_zero() {
    for (counted, wanted) in [(0, vec![]), (1, vec![Promise::FailuresCounted])] {
        let mut trace = HistoryBuilder::new();
        let job = trace.schedule(0, 0);
        let again = Verdict::Again(T0, Bytes::new());
        trace.claim(1, job, 1);
        trace.settle(2, job, 1, Verdict::Retry(T0));
        trace.claim_with(3, job, 2, 1, "");
        trace.settle(4, job, 2, again);
        trace.claim_with(5, job, 3, counted, "");
        assert_eq!(trace.violated(&[job]), wanted, "attempts {counted} after a next step");
    }
}

#[test]
fn a_next_step_may_not_start_early() {
    for (start, wanted) in [(9, vec![Promise::NeverEarly]), (10, vec![])] {
        let mut trace = HistoryBuilder::new();
        let job = trace.schedule(0, 0);
        let again = Verdict::Again(at(10), Bytes::new());
        trace.claim(1, job, 1);
        trace.settle(2, job, 1, again);
        trace.claim(start, job, 2);
        assert_eq!(trace.violated(&[job]), wanted, "a step due at 10 starts at {start}");
    }
}

#[test]
fn a_job_that_starts_with_another_payload_is_reported() {
    let lost = vec![Promise::NothingLost];
    for (first, second, answer, wanted) in [
        ("", "next", Some(true), vec![]),
        ("other", "next", Some(true), lost.clone()),
        // The step has not taken effect.
        ("", "", Some(true), lost.clone()),
        ("", "next", Some(false), lost),
        // The step may have taken effect.
        ("", "", None, vec![]),
        ("", "next", None, vec![]),
    ] {
        let mut trace = HistoryBuilder::new();
        let job = trace.schedule(0, 0);
        trace.claim_with(1, job, 1, 0, first);
        trace.settle_with(2, job, 1, Verdict::Again(T0, "next".into()), answer);
        trace.claim_with(200, job, 2, 0, second);
        assert_eq!(trace.violated(&[job]), wanted, "{first:?}, {answer:?}, {second:?}");
    }
}

#[test]
fn a_detached_job_is_not_revoked_by_its_former_key() {
    for (detach, wanted) in [(true, vec![]), (false, vec![Promise::CancelIsBinding])] {
        let mut trace = HistoryBuilder::new();
        let old = trace.schedule_keyed(0, false, ScheduleAnswer::Created);
        trace.claim(1, old, 1);
        let new = trace.schedule_keyed(2, detach, ScheduleAnswer::Created);
        trace.settle(3, old, 1, Verdict::Retry(T0));
        trace.cancel(4, ObservedTarget::Key(queue(), key()));
        trace.claim_with(5, old, 2, 1, "");
        assert_eq!(trace.violated(&[old]), wanted, "detach: {detach}; the new job is {new}");
    }
}

#[test]
fn a_job_that_was_reported_as_ended_does_not_start() {
    for (ended, wanted) in [(true, vec![Promise::OneLeaseAtATime]), (false, vec![])] {
        let mut trace = HistoryBuilder::new();
        let job = trace.schedule(0, 0);
        let answer = if ended { ScheduleAnswer::Ended } else { ScheduleAnswer::Created };
        trace.add(1, scheduling(job, 0, Some(answer)));
        trace.claim(2, job, 1);
        assert_eq!(trace.violated(&[job]), wanted, "after the answer {answer:?}");
    }
}

#[test]
fn a_job_that_was_never_stored_has_not_ended() {
    let mut trace = HistoryBuilder::new();
    let job = trace.new_id();
    trace.add(1, scheduling(job, 0, Some(ScheduleAnswer::Ended)));
    assert_eq!(trace.violated(&[]), [Promise::NothingLost]);
}

#[test]
fn a_finished_job_is_not_stored_again_while_its_id_is_pinned() {
    let (hour, short) = (Duration::from_secs(3_600), Duration::from_millis(5));
    // The pin before and after the end, and when the later call returns.
    let cases = [
        (hour, hour, 9, vec![Promise::OneLeaseAtATime]),
        (hour, Duration::ZERO, 9, vec![Promise::OneLeaseAtATime]),
        // The pin has expired by then, or there was none.
        (short, hour, 9, vec![]),
        (short, short, 20, vec![]),
        (Duration::ZERO, hour, 9, vec![]),
    ];
    for (before, after, returns, wanted) in cases {
        let mut trace = HistoryBuilder::new();
        let job = trace.new_id();
        let stored = |pin| {
            let mut call = scheduling(job, 0, Some(ScheduleAnswer::Created));
            if let ObservedCall::Schedule { remember, .. } = &mut call {
                *remember = pin;
            }
            call
        };
        trace.add(0, stored(before));
        // The job is still stored.
        trace.add(1, stored(before));
        trace.claim(2, job, 1);
        trace.done(3, job, 1);
        trace.add(7, stored(after));
        trace.events.last_mut().unwrap().interval.returned_at = at(returns);
        assert_eq!(trace.violated(&[job]), wanted, "{before:?}, then {after:?} at {returns}");
    }
}
