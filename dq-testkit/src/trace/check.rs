//! Checks each job's lifetime against the promises.
//!
//! Each function checks one promise, and reports a violation only if no order of the calls explains
//! what clients saw. `precedes` is certain; `may_precede` is possible.

use std::collections::HashSet;

use dq_core::{JobId, Timestamp};

use super::event::{Interval, ObservedVerdict, Promise, TraceEvent, Violation};
use super::lifetime::{Claim, JobLifetime, in_effect, lifetimes};

pub(super) fn check(events: &[TraceEvent], remaining: &[JobId]) -> Vec<Violation> {
    let remaining: HashSet<JobId> = remaining.iter().copied().collect();
    let lifetimes = lifetimes(events);
    let mut violations = Vec::new();
    for (job, lifetime) in &lifetimes {
        let mut report =
            |promise, detail: String| violations.push(Violation { promise, job: *job, detail });
        nothing_lost(lifetime, remaining.contains(job), &mut report);
        payload_is_its_own(lifetime, &mut report);
        never_early(lifetime, &mut report);
        one_lease_at_a_time(lifetime, &mut report);
        lost_leases_have_no_effect(lifetime, &mut report);
        no_start_after_the_end(lifetime, &mut report);
        cancel_is_binding(lifetime, &mut report);
        reported_ends_are_true(lifetime, &mut report);
        pinned_ids_stay_taken(lifetime, &mut report);
        failures_counted(lifetime, &mut report);
    }
    for job in remaining.iter().filter(|job| !lifetimes.contains_key(job)) {
        let detail = "is in the store, but was never scheduled".to_owned();
        violations.push(Violation { promise: Promise::NothingLost, job: *job, detail });
    }
    violations
}

/// Promise 1: a stored job stays until something removes it, and no other job appears.
fn nothing_lost(
    lifetime: &JobLifetime<'_>,
    remains: bool,
    report: &mut impl FnMut(Promise, String),
) {
    if lifetime.stored.is_empty() {
        if let Some(claim) = lifetime.claims.first() {
            let now = claim.now;
            report(Promise::NothingLost, format!("starts at {now}, but was never scheduled"));
        }
        return;
    }
    let finished = lifetime
        .settlements
        .iter()
        .any(|settlement| settlement.possible() && settlement.verdict.is_final());
    let removed =
        !lifetime.purges.is_empty() || lifetime.while_dead(&lifetime.removals).next().is_some();
    let explained = finished || removed || !lifetime.revocations.is_empty();
    let certain = lifetime.stored.iter().any(|stored| stored.certain);
    if certain && !remains && !explained {
        report(Promise::NothingLost, "is gone, and no call removed it".to_owned());
    }
    // If the id was scheduled again, the new job may still be there.
    let is_finished =
        lifetime.accepted_settlements().any(|settlement| settlement.verdict.is_final());
    if remains && is_finished && lifetime.stored.len() == 1 {
        report(Promise::NothingLost, "is in the store, but was settled as finished".to_owned());
    }
}

/// Promise 1: a job starts with its own payload.
fn payload_is_its_own(lifetime: &JobLifetime<'_>, report: &mut impl FnMut(Promise, String)) {
    for claim in lifetime.claims.iter().filter(|_| !lifetime.payloads.is_empty()) {
        let found = claim.payload;
        let mut payloads = in_effect(&lifetime.payloads, &claim.interval);
        if !payloads.any(|payload| payload.is_none_or(|payload| payload == found)) {
            let detail = format!("starts at {} with another payload: {found:?}", claim.now);
            report(Promise::NothingLost, detail);
        }
    }
}

/// Promise 2: no job starts before the due time in effect.
fn never_early(lifetime: &JobLifetime<'_>, report: &mut impl FnMut(Promise, String)) {
    for claim in &lifetime.claims {
        if claim.due > claim.now {
            let (due, now) = (claim.due, claim.now);
            report(Promise::NeverEarly, format!("is due at {due} and starts at {now}"));
        }
        if let Some(earliest) = in_effect(&lifetime.due_times, &claim.interval).min().copied()
            && claim.now < earliest
        {
            let now = claim.now;
            report(
                Promise::NeverEarly,
                format!("starts at {now}, and may not start before {earliest}"),
            );
        }
    }
}

/// The times at which the claim's lease may expire, as seen by `call`: the granted one, and each
/// renewal's.
pub(super) fn lease_ends<'a>(
    lifetime: &'a JobLifetime<'_>,
    claim: &'a Claim<'_>,
    call: &'a Interval,
) -> impl Iterator<Item = Timestamp> {
    let token = claim.token;
    let renewals = move || lifetime.renewals.iter().filter(move |renewal| renewal.token == token);
    // A later renewal with a known answer replaces a time.
    let outdated = move |since: &Interval| {
        renewals().any(|later| {
            let in_order =
                since.precedes(&later.effect.interval) && later.effect.interval.precedes(call);
            later.effect.certain && in_order
        })
    };
    let granted = (!outdated(&claim.interval)).then_some(claim.until);
    let renewed = renewals()
        .filter(move |renewal| {
            let interval = &renewal.effect.interval;
            !outdated(interval) && interval.may_precede(call)
        })
        .map(|renewal| renewal.until);
    granted.into_iter().chain(renewed)
}

/// Promise 4: tokens grow from lease to lease, and a job has one held lease at a time.
fn one_lease_at_a_time(lifetime: &JobLifetime<'_>, report: &mut impl FnMut(Promise, String)) {
    let mut report = |detail| report(Promise::OneLeaseAtATime, detail);
    let mut claims: Vec<_> = lifetime.claims.iter().collect();
    claims.sort_by_key(|claim| claim.token);
    for pair in claims.windows(2) {
        let [first, second] = [pair[0], pair[1]];
        let token = first.token;
        if token == second.token {
            report(format!("has two leases with the token {token}"));
            continue;
        }
        if second.interval.precedes(&first.interval) {
            let old = second.token;
            report(format!("has a lease with token {token} after one with token {old}"));
        }
        let may_be_settled = lifetime.settlements.iter().any(|settlement| {
            settlement.token == token
                && settlement.possible()
                && settlement.interval.may_precede(&second.interval)
        });
        // The lease was certainly held only until the earliest possible time.
        let until = lease_ends(lifetime, first, &second.interval).min().unwrap_or_default();
        if !may_be_settled && second.now < until {
            let now = second.now;
            report(format!("is leased again at {now}, but token {token} holds it until {until}"));
        }
    }
}

/// Promise 4: a lease is settled once, and not after it was lost.
fn lost_leases_have_no_effect(
    lifetime: &JobLifetime<'_>,
    report: &mut impl FnMut(Promise, String),
) {
    let mut report = |detail| report(Promise::OneLeaseAtATime, detail);
    for settlement in lifetime.accepted_settlements() {
        let (token, call) = (settlement.token, &settlement.interval);
        let is_newer = |claim: &&Claim<'_>| claim.token > token && claim.interval.precedes(call);
        if let Some(newer) = lifetime.claims.iter().find(is_newer) {
            let newer = newer.token;
            report(format!("is settled by token {token} after a lease with token {newer}"));
        }
        // A renewal with a lost answer makes the end of the lease unknown.
        let is_unknown = lifetime.renewals.iter().any(|it| it.token == token && !it.effect.certain);
        let claim = lifetime.claims.iter().find(|claim| claim.token == token);
        if let Some(claim) = claim.filter(|_| !is_unknown) {
            // The lease has certainly expired only at the latest possible time.
            let until = lease_ends(lifetime, claim, call).max().unwrap_or(Timestamp::MAX);
            if call.at >= until {
                let at = call.at;
                report(format!("is settled at {at}, after its lease ended at {until}"));
            }
        }
        let is_settled_later = lifetime
            .accepted_settlements()
            .any(|other| other.token == token && other.interval.invoked > call.invoked);
        if is_settled_later {
            report(format!("is settled twice by token {token}"));
        }
    }
}

/// A finished job starts only if it is stored again (promise 4). A dead job may also be replayed
/// (promise 6).
fn no_start_after_the_end(lifetime: &JobLifetime<'_>, report: &mut impl FnMut(Promise, String)) {
    for settlement in lifetime.accepted_settlements() {
        let stored = lifetime.stored.iter().map(|stored| stored.interval);
        let (promise, restarts): (_, Vec<_>) = match settlement.verdict {
            ObservedVerdict::Done | ObservedVerdict::Skip => {
                (Promise::OneLeaseAtATime, stored.collect())
            }
            // A dead job can be removed and stored again.
            ObservedVerdict::Dead => {
                (Promise::FailuresCounted, stored.chain(lifetime.replays.iter().copied()).collect())
            }
            _ => continue,
        };
        let later = lifetime.claims.iter().filter(|it| settlement.interval.precedes(&it.interval));
        for claim in later {
            let restarted = restarts.iter().any(|restart| {
                settlement.interval.may_precede(restart) && restart.may_precede(&claim.interval)
            });
            if !restarted {
                let (now, verdict) = (claim.now, settlement.verdict);
                report(promise, format!("starts at {now}, after it was settled with {verdict:?}"));
            }
        }
    }
}

/// When `schedule` reports a pinned id as ended, the job was stored before (promise 1), and starts
/// only if it is stored again (promise 4).
fn reported_ends_are_true(lifetime: &JobLifetime<'_>, report: &mut impl FnMut(Promise, String)) {
    for ended in &lifetime.ended {
        if lifetime.stored.iter().all(|stored| ended.precedes(&stored.interval)) {
            let detail = "is reported as ended, but was never stored before".to_owned();
            report(Promise::NothingLost, detail);
        }
        for claim in lifetime.claims.iter().filter(|claim| ended.precedes(&claim.interval)) {
            if !lifetime.may_be_stored_between(ended, &claim.interval) {
                let now = claim.now;
                let detail = format!("starts at {now}, after it was reported as ended");
                report(Promise::OneLeaseAtATime, detail);
            }
        }
    }
}

/// Promise 4: a finished job is not stored again while its id is pinned.
fn pinned_ids_stay_taken(lifetime: &JobLifetime<'_>, report: &mut impl FnMut(Promise, String)) {
    let ends = lifetime.accepted_settlements();
    for ended in ends.filter(|settlement| settlement.verdict.is_final()).map(|it| it.interval) {
        // The calls that may have stored the ended job set its pin.
        let pins = lifetime.pins.iter().filter(|(call, _)| call.interval.may_precede(&ended));
        let remember = pins.map(|(_, remember)| *remember).min().unwrap_or_default();
        let again = lifetime.stored.iter().find(|stored| {
            let is_pinned = stored.interval.returned_at < ended.at + remember;
            stored.certain && is_pinned && ended.precedes(&stored.interval)
        });
        if let Some(again) = again {
            let (at, ended) = (again.interval.at, ended.at);
            let detail =
                format!("is stored again at {at}; it ended at {ended}, and its id is pinned");
            report(Promise::OneLeaseAtATime, detail);
        }
    }
}

/// Promise 5: a job does not start after it was cancelled or replaced.
fn cancel_is_binding(lifetime: &JobLifetime<'_>, report: &mut impl FnMut(Promise, String)) {
    for revoked in lifetime.revocations.iter().filter(|revoked| revoked.certain) {
        // If this job may have ended first, the call may have affected a later job with the same
        // key or id.
        let ended = lifetime.settlements.iter().any(|settlement| {
            let is_end = matches!(
                settlement.verdict,
                ObservedVerdict::Done | ObservedVerdict::Skip | ObservedVerdict::Dead
            );
            is_end && settlement.possible() && settlement.interval.may_precede(&revoked.interval)
        });
        if ended {
            continue;
        }
        let later =
            lifetime.claims.iter().filter(|claim| revoked.interval.precedes(&claim.interval));
        for claim in later {
            // Allowed if another call stored the job again after the revocation. The revoking call
            // itself does not count, although a bulk can store a job and replace it at once.
            let stored_again = lifetime.stored.iter().any(|stored| {
                stored.interval != revoked.interval
                    && revoked.interval.may_precede(&stored.interval)
                    && stored.interval.may_precede(&claim.interval)
            });
            if !stored_again {
                let now = claim.now;
                let detail = format!("starts at {now}, after it was cancelled or replaced");
                report(Promise::CancelIsBinding, detail);
            }
        }
    }
}

/// Promise 6: `attempts` counts the current step's failed attempts.
fn failures_counted(lifetime: &JobLifetime<'_>, report: &mut impl FnMut(Promise, String)) {
    // A stored-again or replayed job counts from zero, so its count is not checked.
    if lifetime.stored.len() != 1 || lifetime.while_dead(&lifetime.replays).next().is_some() {
        return;
    }
    let with = |is_verdict: fn(&ObservedVerdict) -> bool| {
        lifetime.settlements.iter().filter(move |settlement| is_verdict(settlement.verdict))
    };
    for claim in &lifetime.claims {
        let steps = || with(|verdict| matches!(verdict, ObservedVerdict::Again(..)));
        let (mut least, mut most) = (0, 0);
        for retry in with(|verdict| matches!(verdict, ObservedVerdict::Retry(_))) {
            // The next step resets the count.
            let reset_certainly = steps().any(|step| {
                step.accepted == Some(true)
                    && retry.interval.precedes(&step.interval)
                    && step.interval.precedes(&claim.interval)
            });
            let reset_possibly = steps().any(|step| {
                step.possible()
                    && retry.interval.may_precede(&step.interval)
                    && step.interval.may_precede(&claim.interval)
            });
            let precedes = retry.interval.precedes(&claim.interval);
            let possible = retry.possible() && retry.interval.may_precede(&claim.interval);
            least += u32::from(retry.accepted == Some(true) && precedes && !reset_possibly);
            most += u32::from(possible && !reset_certainly);
        }
        let counted = claim.attempts;
        if !(least..=most).contains(&counted) {
            report(
                Promise::FailuresCounted,
                format!("counts {counted} failed attempts, but {least} to {most} failed"),
            );
        }
    }
}
