//! The trace checker accepts valid traces, and reports each violation with its promise.
//!
//! The traces are at the borders: each pair differs in one detail, which decides whether a promise
//! is violated. `broken::trace` shows that the checker finds the defects of broken backends.

use std::time::Duration;

use bytes::Bytes;
use dq_core::{Clock, Entropy, Flow, JobId, JobKey, QueueName, Rate, SystemClock, Timestamp};
use dq_testkit::trace::{
    Interval, ObservedCall, ObservedTarget, ObservedVerdict as Verdict, OperatorAction, Promise,
    ScheduleAnswer, Trace, TraceEvent,
};

/// Times in the tests are milliseconds after it.
const START: Timestamp = Timestamp::from_millis(1_000_000);
const LEASE: Duration = Duration::from_millis(100);
const NO_VIOLATION: &[Promise] = &[];

/// Builds a trace of one client. A call begins when the last one has returned, unless a test lets
/// them overlap. `millis` is the time of a call after [`START`].
struct TraceBuilder {
    events: Vec<TraceEvent>,
    next_position: u64,
    entropy: Entropy,
}

fn after_start(millis: u64) -> Timestamp {
    START + Duration::from_millis(millis)
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn key() -> JobKey {
    JobKey::new("k").unwrap()
}

impl TraceBuilder {
    fn new() -> Self {
        Self { events: Vec::new(), next_position: 0, entropy: Entropy::seeded(7) }
    }

    /// A job that is due at the start was scheduled and leased with token 1, both at the start.
    fn with_leased_job() -> (Self, JobId) {
        let mut trace = Self::new();
        let job = trace.schedule(0, 0);
        trace.claim(0, job, 1);
        (trace, job)
    }

    fn add(&mut self, millis: u64, call: ObservedCall) {
        let invoked = self.next_position;
        let at = after_start(millis);
        let interval = Interval { invoked, returned: invoked + 1, at, returned_at: at };
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

    fn schedule_grouped(&mut self, group: &str) -> JobId {
        let job = self.new_id();
        let mut call = scheduling(job, 0, Some(ScheduleAnswer::Created));
        if let ObservedCall::Schedule { group: of_job, .. } = &mut call {
            *of_job = Some(group.to_owned());
        }
        self.add(0, call);
        job
    }

    fn schedule_keyed(&mut self, millis: u64, detaches: bool) -> JobId {
        let job = self.new_id();
        let mut call = scheduling(job, millis, Some(ScheduleAnswer::Created));
        if let ObservedCall::Schedule { key: job_key, detach, .. } = &mut call {
            (*job_key, *detach) = (Some(key()), detaches);
        }
        self.add(millis, call);
        job
    }

    fn claim(&mut self, millis: u64, job: JobId, token: u64) {
        self.claim_with(millis, job, token, 0, "");
    }

    fn claim_with(&mut self, millis: u64, job: JobId, token: u64, attempts: u32, payload: &str) {
        let (now, until) = (after_start(millis), after_start(millis) + LEASE);
        let payload = Bytes::from(payload.to_owned());
        let due = START;
        self.add(millis, ObservedCall::Claim { now, job, due, attempts, payload, token, until });
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

    fn cancel_by_key(&mut self, millis: u64) {
        let job = ObservedTarget::Key(queue(), key());
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

/// A `schedule` call without a key, a pin and a payload.
fn scheduling(job: JobId, due: u64, answer: Option<ScheduleAnswer>) -> ObservedCall {
    ObservedCall::Schedule {
        job,
        queue: queue(),
        key: None,
        group: None,
        detach: false,
        remember: Duration::ZERO,
        not_before: after_start(due),
        payload: Some(Bytes::new()),
        answer,
    }
}

/// The expected violations: this promise, or none.
fn only_if(violates: bool, promise: &Promise) -> &[Promise] {
    if violates { std::slice::from_ref(promise) } else { NO_VIOLATION }
}

#[test]
fn a_valid_trace_passes() {
    let mut trace = TraceBuilder::new();
    let job = trace.schedule(0, 10);
    trace.claim(10, job, 1);
    trace.settle(20, job, 1, Verdict::Retry(after_start(50)));
    trace.claim_with(50, job, 2, 1, "");
    trace.claim_with(150, job, 3, 1, "");
    trace.settle_with(160, job, 2, Verdict::Done, Some(false));
    trace.settle(170, job, 3, Verdict::Done);
    let waiting = trace.schedule(180, 500);
    assert_eq!(trace.violated(&[waiting]), NO_VIOLATION);
}

#[test]
fn a_job_that_was_never_scheduled_is_reported() {
    for starts in [true, false] {
        let mut trace = TraceBuilder::new();
        let unknown = trace.new_id();
        if starts {
            trace.claim(10, unknown, 1);
        }
        assert_eq!(trace.violated(&[unknown]), [Promise::NothingLost], "it starts: {starts}");
    }
}

#[test]
fn a_finished_job_that_is_still_stored_is_reported() {
    let (mut trace, job) = TraceBuilder::with_leased_job();
    trace.settle(10, job, 1, Verdict::Done);
    assert_eq!(trace.violated(&[job]), [Promise::NothingLost]);
}

#[test]
fn a_start_at_the_old_due_time_is_reported_unless_the_reschedule_overlaps() {
    for overlaps in [false, true] {
        let mut trace = TraceBuilder::new();
        let job = trace.schedule(0, 10);
        let not_before = after_start(90);
        let moved = Some(Some(job));
        trace.add(5, ObservedCall::Reschedule { job: ObservedTarget::Id(job), not_before, moved });
        if overlaps {
            trace.overlap_next();
        }
        trace.claim(10, job, 1);
        assert_eq!(trace.violated(&[job]), only_if(!overlaps, &Promise::NeverEarly));
    }
}

#[test]
fn a_retry_or_a_next_step_may_not_start_early() {
    let due = after_start(50);
    for (verdict, attempts) in [
        (Verdict::Retry(due), 1),
        (Verdict::Again(due, Bytes::new()), 0),
        (Verdict::Snooze(due), 0),
    ] {
        for starts in [49, 50] {
            let (mut trace, job) = TraceBuilder::with_leased_job();
            trace.settle(10, job, 1, verdict.clone());
            trace.claim_with(starts, job, 2, attempts, "");
            let wanted = only_if(starts < 50, &Promise::NeverEarly);
            assert_eq!(trace.violated(&[job]), wanted, "{verdict:?} starts at {starts}");
        }
    }
}

#[test]
fn a_lease_is_live_until_it_expires_or_until_its_renewed_end() {
    for (renewed_until, claimed_again, is_live) in
        [(None, 99, true), (None, 100, false), (Some(150), 200, false), (Some(250), 200, true)]
    {
        let (mut trace, job) = TraceBuilder::with_leased_job();
        if let Some(until) = renewed_until.map(after_start) {
            trace.add(50, ObservedCall::Renew { job, token: 1, until, held: Some(true) });
        }
        trace.claim(claimed_again, job, 2);
        let wanted = only_if(is_live, &Promise::OneLeaseAtATime);
        let case = format!("renewed until {renewed_until:?}, leased again at {claimed_again}");
        assert_eq!(trace.violated(&[job]), wanted, "{case}");
    }
}

#[test]
fn a_token_below_the_last_one_is_reported() {
    let mut trace = TraceBuilder::new();
    let job = trace.schedule(0, 0);
    trace.claim(0, job, 5);
    trace.claim(300, job, 4);
    assert_eq!(trace.violated(&[job])[0], Promise::OneLeaseAtATime);
}

#[test]
fn an_accepted_settlement_at_the_end_of_the_lease_is_reported() {
    for (settled, is_late) in [(99, false), (100, true)] {
        let (mut trace, job) = TraceBuilder::with_leased_job();
        trace.settle(settled, job, 1, Verdict::Done);
        assert_eq!(trace.violated(&[]), only_if(is_late, &Promise::OneLeaseAtATime));
    }
}

#[test]
fn a_start_of_a_finished_job_is_reported() {
    let (mut trace, job) = TraceBuilder::with_leased_job();
    trace.settle(10, job, 1, Verdict::Done);
    trace.claim(20, job, 2);
    assert!(trace.violated(&[]).contains(&Promise::OneLeaseAtATime));
}

#[test]
fn a_detached_job_is_not_revoked_by_its_former_key() {
    for detaches in [true, false] {
        let mut trace = TraceBuilder::new();
        let old = trace.schedule_keyed(0, false);
        trace.claim(1, old, 1);
        trace.schedule_keyed(2, detaches);
        trace.settle(3, old, 1, Verdict::Retry(START));
        trace.cancel_by_key(4);
        trace.claim_with(5, old, 2, 1, "");
        let wanted = only_if(!detaches, &Promise::CancelIsBinding);
        assert_eq!(trace.violated(&[old]), wanted, "the new job detaches: {detaches}");
    }
}

#[test]
fn a_start_of_a_dead_job_is_reported_unless_it_was_replayed() {
    for replayed in [false, true] {
        let (mut trace, job) = TraceBuilder::with_leased_job();
        trace.settle(10, job, 1, Verdict::Dead);
        if replayed {
            let not_before = after_start(20);
            trace.operate(20, OperatorAction::Replay { jobs: vec![job], not_before });
        }
        trace.claim(30, job, 2);
        assert_eq!(trace.violated(&[job]), only_if(!replayed, &Promise::FailuresCounted));
    }
}

#[test]
fn a_removal_explains_only_that_dead_jobs_are_gone() {
    for dies in [false, true] {
        let (mut trace, job) = TraceBuilder::with_leased_job();
        if dies {
            trace.settle(10, job, 1, Verdict::Dead);
        }
        trace.operate(20, OperatorAction::Remove { jobs: vec![job] });
        assert_eq!(trace.violated(&[]), only_if(!dies, &Promise::NothingLost));
    }
}

#[test]
fn attempts_count_the_failures_of_the_current_step() {
    let next_step = Verdict::Again(START, Bytes::new());
    for (verdicts, failures) in [
        (vec![Verdict::Retry(START)], 1),
        (vec![Verdict::Retry(START), next_step.clone()], 0),
        (vec![next_step, Verdict::Retry(START)], 1),
    ] {
        for counted in 0..3 {
            let (mut trace, job) = TraceBuilder::with_leased_job();
            let mut token = 1;
            let mut attempts = 0;
            for verdict in &verdicts {
                trace.settle(1, job, token, verdict.clone());
                token += 1;
                attempts = if matches!(verdict, Verdict::Retry(_)) { attempts + 1 } else { 0 };
                if token <= verdicts.len() as u64 {
                    trace.claim_with(1, job, token, attempts, "");
                }
            }
            trace.claim_with(1, job, token, counted, "");
            let wanted = only_if(counted != failures, &Promise::FailuresCounted);
            assert_eq!(trace.violated(&[job]), wanted, "{counted} after {verdicts:?}");
        }
    }
}

#[test]
fn a_call_whose_answer_was_lost_may_or_may_not_have_taken_effect() {
    for stored in [false, true] {
        let mut trace = TraceBuilder::new();
        let job = trace.new_id();
        trace.add(0, scheduling(job, 0, None));
        let remaining: &[JobId] = if stored { &[job] } else { &[] };
        assert_eq!(trace.violated(remaining), NO_VIOLATION);
    }
}

#[test]
fn a_job_that_starts_with_another_payload_is_reported() {
    for (first, second, accepted, is_its_own) in [
        ("", "next", Some(true), true),
        ("other", "next", Some(true), false),
        // The step has not taken effect.
        ("", "", Some(true), false),
        ("", "next", Some(false), false),
        // The step may have taken effect.
        ("", "", None, true),
        ("", "next", None, true),
    ] {
        let mut trace = TraceBuilder::new();
        let job = trace.schedule(0, 0);
        trace.claim_with(1, job, 1, 0, first);
        trace.settle_with(2, job, 1, Verdict::Again(START, "next".into()), accepted);
        trace.claim_with(200, job, 2, 0, second);
        let wanted = only_if(!is_its_own, &Promise::NothingLost);
        assert_eq!(trace.violated(&[job]), wanted, "{first:?}, {accepted:?}, {second:?}");
    }
}

#[test]
fn a_job_that_was_reported_as_ended_does_not_start() {
    for (answer, ended) in [(ScheduleAnswer::Ended, true), (ScheduleAnswer::Created, false)] {
        let mut trace = TraceBuilder::new();
        let job = trace.schedule(0, 0);
        trace.add(1, scheduling(job, 0, Some(answer)));
        trace.claim(2, job, 1);
        let wanted = only_if(ended, &Promise::OneLeaseAtATime);
        assert_eq!(trace.violated(&[job]), wanted, "after the answer {answer:?}");
    }
}

#[test]
fn a_job_that_was_never_stored_has_not_ended() {
    let mut trace = TraceBuilder::new();
    let job = trace.new_id();
    trace.add(1, scheduling(job, 0, Some(ScheduleAnswer::Ended)));
    assert_eq!(trace.violated(&[]), [Promise::NothingLost]);
}

#[test]
fn a_finished_job_is_not_stored_again_while_its_id_is_pinned() {
    let (hour, short) = (Duration::from_secs(3_600), Duration::from_millis(5));
    // The pins of the calls before and after the end, and when the later call returns.
    for (before, after, returns, is_pinned) in [
        (hour, hour, 9, true),
        (hour, Duration::ZERO, 9, true),
        // The pin has expired by then, or there was none.
        (short, hour, 9, false),
        (short, short, 20, false),
        (Duration::ZERO, hour, 9, false),
    ] {
        let mut trace = TraceBuilder::new();
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
        trace.settle(3, job, 1, Verdict::Done);
        trace.add(7, stored(after));
        trace.events.last_mut().unwrap().interval.returned_at = after_start(returns);
        let wanted = only_if(is_pinned, &Promise::OneLeaseAtATime);
        assert_eq!(trace.violated(&[job]), wanted, "{before:?}, then {after:?} at {returns}");
    }
}

/// Three leases at 50 ms, unless the first has ended by then.
#[test]
fn an_exceeded_limit_is_reported() {
    let two = Flow::UNLIMITED.max_running(2);
    let one_of_group = Flow::UNLIMITED.group_max_running(1);
    for (settled, third_claim, exceeds) in [
        (None, 50, true),
        (Some(Some(true)), 50, false),
        (Some(None), 50, false),
        (None, 101, false),
    ] {
        let mut trace = TraceBuilder::new();
        let jobs = ["a", "b", "a"].map(|group| trace.schedule_grouped(group));
        trace.claim(0, jobs[0], 1);
        trace.claim(40, jobs[1], 2);
        if let Some(accepted) = settled {
            trace.settle_with(45, jobs[0], 1, Verdict::Done, accepted);
        }
        trace.claim(third_claim, jobs[2], 3);
        let trace = Trace::new(trace.events);
        for flow in [two, one_of_group] {
            let found = trace.check_limits(&queue(), flow).problems;
            assert_eq!(found.len(), usize::from(exceeds), "{settled:?} {third_claim}: {found:?}");
        }
        let three = Flow::UNLIMITED.max_running(3).group_max_running(2);
        let found = trace.check_limits(&queue(), three);
        assert!(found.problems.is_empty(), "{found:?}");
        let most = if exceeds { (3, 2) } else { (2, 1) };
        assert_eq!((found.most_running, found.most_of_group), most, "{settled:?} {third_claim}");
    }
}

/// Three starts 100 ms apart, of at most two in that time: unless a slow claim may explain it.
#[test]
fn an_exceeded_rate_is_reported() {
    let rate: Rate = "10/1s burst 2".parse().unwrap();
    for (third_claim, takes, exceeds) in [(98, 0, true), (99, 0, false), (98, 1, false)] {
        let mut trace = TraceBuilder::new();
        let jobs = ["a", "b", "c"].map(|group| trace.schedule_grouped(group));
        for (job, at) in jobs.into_iter().zip([0, 40, third_claim]) {
            trace.claim(at, job, 1);
        }
        trace.events.last_mut().unwrap().interval.returned_at = after_start(third_claim + takes);
        let trace = Trace::new(trace.events);
        let found = trace.check_limits(&queue(), Flow::UNLIMITED.rate(rate)).problems;
        assert_eq!(found.len(), usize::from(exceeds), "{third_claim} {takes}: {found:?}");
    }
}
