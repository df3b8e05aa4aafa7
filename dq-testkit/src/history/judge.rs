//! What each clause says about one job's life.

use std::collections::HashSet;

use dq_core::{JobId, Timestamp, Verdict};

use super::life::{Life, Start, lives};
use super::{Breach, Clause, Event, Span};

pub(super) fn judge(events: &[Event], remaining: &[JobId]) -> Vec<Breach> {
    let remaining: HashSet<JobId> = remaining.iter().copied().collect();
    let lives = lives(events);
    let mut breaches = Vec::new();
    for (job, life) in &lives {
        let mut accuse = |clause, how: String| breaches.push(Breach { clause, job: *job, how });
        nothing_lost(life, remaining.contains(job), &mut accuse);
        never_early(life, &mut accuse);
        one_at_a_time(life, &mut accuse);
        never_after_an_end(life, &mut accuse);
        says_what_happened(life, &mut accuse);
        failure_counted(life, &mut accuse);
    }
    for job in remaining.iter().filter(|job| !lives.contains_key(job)) {
        let how = "is in the store, though nobody handed it in".to_owned();
        breaches.push(Breach { clause: Clause::NothingLost, job: *job, how });
    }
    breaches
}

/// Clause 1: what was stored is there until something took it away, and nothing else is.
fn nothing_lost(life: &Life<'_>, remains: bool, accuse: &mut impl FnMut(Clause, String)) {
    if life.births.is_empty() {
        if let Some(start) = life.starts.first() {
            accuse(Clause::NothingLost, format!("starts at {}, never handed in", start.now));
        }
        return;
    }
    let gone = |verdict: &Verdict| matches!(verdict, Verdict::Done | Verdict::Skip);
    let ended = life.ends.iter().any(|end| end.possible() && gone(end.verdict));
    let removed = !life.purges.is_empty() || life.finding_it_dead(&life.removals).next().is_some();
    let taken = ended || removed || !life.revocations.is_empty();
    let certain = life.births.iter().any(|birth| birth.certain);
    if certain && !remains && !taken {
        accuse(Clause::NothingLost, "is gone, and nothing took it away".to_owned());
    }
    // One that was done may have been handed in again under the same id.
    let done = life.ends.iter().any(|end| end.accepted == Some(true) && gone(end.verdict));
    if remains && done && life.births.len() == 1 {
        accuse(Clause::NothingLost, "is in the store, though it was settled for good".to_owned());
    }
}

/// Clause 2: no start before the time that holds.
fn never_early(life: &Life<'_>, accuse: &mut impl FnMut(Clause, String)) {
    for start in &life.starts {
        if start.leased.job.due > start.now {
            let due = start.leased.job.due;
            accuse(Clause::NeverEarly, format!("is due at {due} and starts at {}", start.now));
        }
        // A bound holds until a later call has set another.
        let holds = |at: usize| {
            let (bound, _) = life.bounds[at];
            let outdated = life.bounds.iter().any(|(later, _)| {
                later.certain && bound.span.before(&later.span) && later.span.before(&start.span)
            });
            !outdated && !start.span.before(&bound.span)
        };
        let bounds = (0..life.bounds.len()).filter(|at| holds(*at)).map(|at| life.bounds[at].1);
        if let Some(bound) = bounds.min()
            && start.now < bound
        {
            let now = start.now;
            accuse(Clause::NeverEarly, format!("starts at {now}, promised not before {bound}"));
        }
    }
}

/// The times at which a lease may end for a call: as it was given out, or as it was renewed last.
fn lease_ends<'a>(
    life: &'a Life<'_>,
    start: &'a Start<'_>,
    call: &'a Span,
) -> impl Iterator<Item = Timestamp> {
    let token = start.leased.token.0;
    let renewals = move || life.renewals.iter().filter(move |renewal| renewal.token == token);
    // A renewal holds until a later one, whose answer is known, has set another end.
    let outdated = move |since: &Span| {
        renewals().any(|later| {
            let in_order = since.before(&later.call.span) && later.call.span.before(call);
            later.call.certain && in_order
        })
    };
    let given = (!outdated(&start.span)).then_some(start.leased.leased_until);
    let renewed = renewals()
        .filter(move |renewal| !outdated(&renewal.call.span) && !call.before(&renewal.call.span))
        .map(|renewal| renewal.until);
    given.into_iter().chain(renewed)
}

/// Clause 4: one live lease, growing tokens, nothing for stale ones.
fn one_at_a_time(life: &Life<'_>, accuse: &mut impl FnMut(Clause, String)) {
    let mut starts: Vec<_> = life.starts.iter().collect();
    starts.sort_by_key(|start| start.leased.token);
    for pair in starts.windows(2) {
        let [first, second] = [pair[0], pair[1]];
        if first.leased.token == second.leased.token {
            let token = first.leased.token;
            accuse(Clause::OneAtATime, format!("has two leases with the token {token}"));
            continue;
        }
        if second.span.before(&first.span) {
            let (old, new) = (second.leased.token, first.leased.token);
            accuse(Clause::OneAtATime, format!("has a lease with token {new} before token {old}"));
        }
        let token = first.leased.token.0;
        let settled = life
            .ends
            .iter()
            .any(|end| end.token == token && end.possible() && !second.span.before(&end.span));
        let until = lease_ends(life, first, &second.span).min().unwrap_or_default();
        if !settled && second.now < until {
            let now = second.now;
            accuse(
                Clause::OneAtATime,
                format!("is leased again at {now}, though token {token} holds it until {until}"),
            );
        }
    }
    for end in life.ends.iter().filter(|end| end.accepted == Some(true)) {
        let token = end.token;
        let newer = starts
            .iter()
            .find(|start| start.leased.token.0 > token && start.span.before(&end.span));
        if let Some(newer) = newer {
            let newer = newer.leased.token;
            accuse(Clause::OneAtATime, format!("is settled by token {token} after token {newer}"));
        }
        if let Some(start) = starts.iter().find(|start| start.leased.token.0 == token) {
            // A renewal whose answer was lost may have moved the end to nobody knows when.
            let lost = life.renewals.iter().any(|r| r.token == token && !r.call.certain);
            let until = lease_ends(life, start, &end.span).max().unwrap_or(Timestamp::MAX);
            if !lost && end.span.at >= until {
                let at = end.span.at;
                accuse(Clause::OneAtATime, format!("is settled at {at}, held until {until}"));
            }
        }
        let twice = life.ends.iter().any(|other| {
            other.accepted == Some(true)
                && other.token == token
                && other.span.began > end.span.began
        });
        if twice {
            accuse(Clause::OneAtATime, format!("is settled twice by token {token}"));
        }
    }
}

/// Clauses 4 and 7: what is done does not start again, nor what is dead without a replay.
fn never_after_an_end(life: &Life<'_>, accuse: &mut impl FnMut(Clause, String)) {
    for end in life.ends.iter().filter(|end| end.accepted == Some(true)) {
        let (clause, comebacks): (_, Vec<_>) = match end.verdict {
            Verdict::Done | Verdict::Skip => {
                (Clause::OneAtATime, life.births.iter().map(|birth| birth.span).collect())
            }
            Verdict::Dead { .. } => (Clause::FailureCounted, life.replays.clone()),
            _ => continue,
        };
        for start in life.starts.iter().filter(|start| end.span.before(&start.span)) {
            let back = comebacks
                .iter()
                .any(|comeback| !comeback.before(&end.span) && !start.span.before(comeback));
            if !back {
                let (now, verdict) = (start.now, end.verdict);
                accuse(clause, format!("starts at {now}, after it was settled with {verdict:?}"));
            }
        }
    }
}

/// Clause 6: after `Cancelled` or `Replaced` the job never starts, nor what is left of it.
fn says_what_happened(life: &Life<'_>, accuse: &mut impl FnMut(Clause, String)) {
    for revoked in life.revocations.iter().filter(|revoked| revoked.certain) {
        // Whoever was done or dead already was not what the call took away.
        let over = life.ends.iter().any(|end| {
            let for_good =
                matches!(end.verdict, Verdict::Done | Verdict::Skip | Verdict::Dead { .. });
            for_good && end.possible() && !revoked.span.before(&end.span)
        });
        if over {
            continue;
        }
        for start in life.starts.iter().filter(|start| revoked.span.before(&start.span)) {
            let reborn = life.births.iter().any(|birth| {
                !birth.span.before(&revoked.span)
                    && birth.span != revoked.span
                    && !start.span.before(&birth.span)
            });
            if !reborn {
                let now = start.now;
                accuse(
                    Clause::SaysWhatHappened,
                    format!("starts at {now}, after it was taken back"),
                );
            }
        }
    }
}

/// Clause 7: `attempts` says how many attempts failed.
fn failure_counted(life: &Life<'_>, accuse: &mut impl FnMut(Clause, String)) {
    // A new life or a replay counts from zero; such jobs are judged by the other clauses.
    if life.births.len() != 1 || life.finding_it_dead(&life.replays).next().is_some() {
        return;
    }
    for start in &life.starts {
        let retries = life.ends.iter().filter(|end| matches!(end.verdict, Verdict::Retry(_)));
        let (mut least, mut most) = (0, 0);
        for retry in retries {
            least += u32::from(retry.accepted == Some(true) && retry.span.before(&start.span));
            most += u32::from(retry.possible() && !start.span.before(&retry.span));
        }
        let counted = start.leased.job.attempts;
        if !(least..=most).contains(&counted) {
            accuse(
                Clause::FailureCounted,
                format!("counts {counted} failed attempts, where {least} to {most} failed"),
            );
        }
    }
}
