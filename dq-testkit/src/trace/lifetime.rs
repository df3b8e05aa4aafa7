//! Extracts each job's lifetime from a trace.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{JobId, JobKey, QueueName, Timestamp};

use super::event::{
    Interval, ObservedCall, ObservedTarget, ObservedVerdict, OperatorAction, ScheduleAnswer,
    TraceEvent,
};

/// The calls about one job that took effect, or may have.
#[derive(Debug, Default)]
pub(super) struct JobLifetime<'a> {
    pub(super) stored: Vec<Effect>,
    pub(super) pins: Vec<(Effect, Duration)>,
    pub(super) due_times: Vec<(Effect, Timestamp)>,
    /// The payloads of the job and of its steps, with the calls. `None` is unknown.
    pub(super) payloads: Vec<(Effect, Option<&'a Bytes>)>,
    pub(super) claims: Vec<Claim<'a>>,
    pub(super) settlements: Vec<Settlement<'a>>,
    pub(super) renewals: Vec<Renewal>,
    /// Cancels and replacements. The job must not start after them.
    pub(super) revocations: Vec<Effect>,
    /// Calls with the answer `Ended`. The job starts after them only if it is stored again.
    pub(super) ended: Vec<Interval>,
    /// Purges remove the job unless it is running.
    pub(super) purges: Vec<Interval>,
    /// Removals remove the job if it is dead.
    pub(super) removals: Vec<Interval>,
    /// Replays make the job wait again if it is dead.
    pub(super) replays: Vec<Interval>,
}

impl JobLifetime<'_> {
    pub(super) fn may_be_stored_between(&self, first: &Interval, last: &Interval) -> bool {
        self.stored
            .iter()
            .any(|stored| first.may_precede(&stored.interval) && stored.interval.may_precede(last))
    }

    pub(super) fn accepted_settlements(&self) -> impl Iterator<Item = &Settlement<'_>> {
        self.settlements.iter().filter(|settlement| settlement.accepted == Some(true))
    }

    /// The calls that may have found the job dead.
    pub(super) fn while_dead<'a>(
        &'a self,
        calls: &'a [Interval],
    ) -> impl Iterator<Item = Interval> {
        let dead = |call: &&Interval| {
            self.settlements.iter().any(|settlement| {
                let dies = *settlement.verdict == ObservedVerdict::Dead;
                dies && settlement.possible() && settlement.interval.may_precede(call)
            })
        };
        calls.iter().filter(dead).copied()
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Effect {
    pub(super) interval: Interval,
    pub(super) certain: bool,
}

/// The values that may be in effect during a call. A later certain call replaces a value.
pub(super) fn in_effect<'a, T>(
    values: &'a [(Effect, T)],
    call: &'a Interval,
) -> impl Iterator<Item = &'a T> {
    let outdated = |set: &Effect| {
        values.iter().any(|(later, _)| {
            later.certain && set.interval.precedes(&later.interval) && later.interval.precedes(call)
        })
    };
    let values =
        values.iter().filter(move |(set, _)| !outdated(set) && set.interval.may_precede(call));
    values.map(|(_, value)| value)
}

#[derive(Debug)]
pub(super) struct Claim<'a> {
    pub(super) interval: Interval,
    pub(super) now: Timestamp,
    pub(super) due: Timestamp,
    pub(super) attempts: u32,
    pub(super) payload: &'a Bytes,
    pub(super) token: u64,
    pub(super) until: Timestamp,
}

#[derive(Debug)]
pub(super) struct Settlement<'a> {
    pub(super) interval: Interval,
    pub(super) token: u64,
    pub(super) verdict: &'a ObservedVerdict,
    /// `None` if the answer was lost.
    pub(super) accepted: Option<bool>,
}

impl Settlement<'_> {
    pub(super) fn possible(&self) -> bool {
        self.accepted != Some(false)
    }
}

#[derive(Debug)]
pub(super) struct Renewal {
    pub(super) effect: Effect,
    pub(super) token: u64,
    /// The earliest possible expiry if the answer was lost.
    pub(super) until: Timestamp,
}

/// A job that has, or may have, a key.
struct KeyHolder {
    job: JobId,
    scheduled: Interval,
    /// It may have detached another job from the key.
    detaches: bool,
}

/// The jobs with each key, so that calls by key find them.
type KeyHolders<'a> = BTreeMap<(&'a QueueName, &'a JobKey), Vec<KeyHolder>>;

pub(super) fn lifetimes(events: &[TraceEvent]) -> BTreeMap<JobId, JobLifetime<'_>> {
    let mut holders = KeyHolders::new();
    let mut queues: BTreeMap<JobId, &QueueName> = BTreeMap::new();
    for TraceEvent { interval, call } in events {
        if let ObservedCall::Schedule { job, queue, key, detach, answer, .. } = call
            && answer.is_none_or(|answer| answer.is_stored())
        {
            queues.insert(*job, queue);
            if let Some(key) = key {
                let holder = KeyHolder { job: *job, scheduled: *interval, detaches: *detach };
                holders.entry((queue, key)).or_default().push(holder);
            }
        }
    }
    let mut lifetimes: BTreeMap<JobId, JobLifetime<'_>> = BTreeMap::new();
    for event in events {
        apply(event, &holders, &queues, &mut lifetimes);
    }
    lifetimes
}

fn apply<'a>(
    TraceEvent { interval, call }: &'a TraceEvent,
    holders: &KeyHolders<'a>,
    queues: &BTreeMap<JobId, &'a QueueName>,
    lifetimes: &mut BTreeMap<JobId, JobLifetime<'a>>,
) {
    let interval = *interval;
    let effect = |certain| Effect { interval, certain };
    match call {
        ObservedCall::FailedClaim => {}
        ObservedCall::Schedule {
            job, queue, key, remember, not_before, payload, answer, ..
        } => {
            if *answer == Some(ScheduleAnswer::Ended) {
                lifetimes.entry(*job).or_default().ended.push(interval);
            }
            if answer.is_some_and(|answer| !answer.is_stored()) {
                return;
            }
            let lifetime = lifetimes.entry(*job).or_default();
            lifetime.stored.push(effect(answer.is_some()));
            lifetime.pins.push((effect(answer.is_some()), *remember));
            // A repeated call may have found the earlier job, with another due time and payload.
            let certain = answer.is_some() && lifetime.stored.len() == 1;
            lifetime.due_times.push((effect(certain), *not_before));
            lifetime.payloads.push((effect(certain), payload.as_ref()));
            let Some(key) = key else { return };
            if *answer == Some(ScheduleAnswer::Created) {
                return;
            }
            // A call that replaced another job with this key has not detached it.
            let replaces = *answer == Some(ScheduleAnswer::Replaced);
            let replacing = replaces.then_some((*job, interval));
            for (other, certain) in holders_of(holders, queue, key, interval, replacing) {
                if other != *job {
                    let revoked = effect(certain && answer.is_some());
                    lifetimes.entry(other).or_default().revocations.push(revoked);
                }
            }
        }
        ObservedCall::Claim { now, job, due, attempts, payload, token, until } => {
            let (now, due, attempts, token, until) = (*now, *due, *attempts, *token, *until);
            let claim = Claim { interval, now, due, attempts, payload, token, until };
            lifetimes.entry(*job).or_default().claims.push(claim);
        }
        ObservedCall::Settle { job, token, verdict, accepted } => {
            let lifetime = lifetimes.entry(*job).or_default();
            let (token, accepted) = (*token, *accepted);
            lifetime.settlements.push(Settlement { interval, token, verdict, accepted });
            if accepted == Some(false) {
                return;
            }
            let effect = effect(accepted.is_some());
            if let ObservedVerdict::Retry(due)
            | ObservedVerdict::Again(due, _)
            | ObservedVerdict::Snooze(due) = verdict
            {
                lifetime.due_times.push((effect, *due));
            }
            if let ObservedVerdict::Again(_, payload) = verdict {
                lifetime.payloads.push((effect, Some(payload)));
            }
        }
        ObservedCall::Renew { held: Some(false), .. } => {}
        ObservedCall::Renew { job, token, until, held } => {
            let renewal = Renewal { effect: effect(held.is_some()), token: *token, until: *until };
            lifetimes.entry(*job).or_default().renewals.push(renewal);
        }
        ObservedCall::Cancel { cancelled: Some(false), .. } => {}
        ObservedCall::Cancel { job, cancelled } => {
            for (id, certain) in targets(holders, job, interval) {
                let revoked = effect(certain && cancelled.is_some());
                lifetimes.entry(id).or_default().revocations.push(revoked);
            }
        }
        ObservedCall::Reschedule { job, not_before, moved } => {
            let certain = moved.is_some();
            let ids: Vec<JobId> = match moved {
                Some(moved) => moved.iter().copied().collect(),
                None => targets(holders, job, interval).into_iter().map(|(id, _)| id).collect(),
            };
            for id in ids {
                let lifetime = lifetimes.entry(id).or_default();
                lifetime.due_times.push((effect(certain), *not_before));
            }
        }
        ObservedCall::Operate { queue, action } => {
            let selected = match action {
                OperatorAction::Replay { jobs, .. } | OperatorAction::Remove { jobs } => Some(jobs),
                OperatorAction::Purge => None,
            };
            let affected = queues
                .iter()
                .filter(|(_, job_queue)| **job_queue == queue)
                .filter(|(id, _)| selected.is_none_or(|jobs| jobs.contains(id)));
            for (id, _) in affected {
                let lifetime = lifetimes.entry(*id).or_default();
                match action {
                    OperatorAction::Replay { not_before, .. } => {
                        lifetime.replays.push(interval);
                        lifetime.due_times.push((effect(false), *not_before));
                    }
                    OperatorAction::Remove { .. } => lifetime.removals.push(interval),
                    OperatorAction::Purge => lifetime.purges.push(interval),
                }
            }
        }
    }
}

/// The flag says whether the target is certain.
fn targets(
    holders: &KeyHolders<'_>,
    target: &ObservedTarget,
    call: Interval,
) -> Vec<(JobId, bool)> {
    match target {
        ObservedTarget::Id(id) => vec![(*id, true)],
        ObservedTarget::Key(queue, key) => holders_of(holders, queue, key, call, None),
    }
}

/// The jobs that may have held a key during a call. The flag says whether the job certainly holds
/// the key while it is live: it was scheduled before the call, and no later job may have detached
/// it. `replacing` is a job whose call replaced rather than detached.
fn holders_of(
    holders: &KeyHolders<'_>,
    queue: &QueueName,
    key: &JobKey,
    call: Interval,
    replacing: Option<(JobId, Interval)>,
) -> Vec<(JobId, bool)> {
    let Some(all) = holders.get(&(queue, key)) else {
        return Vec::new();
    };
    let possible = all.iter().filter(|holder| holder.scheduled.may_precede(&call));
    possible
        .map(|holder| {
            // A later job may have detached this one for good: a repeated call does not return the
            // key.
            let detached = all.iter().filter(|own| own.job == holder.job).any(|own| {
                all.iter().any(|later| {
                    later.detaches
                        && later.job != own.job
                        && replacing != Some((later.job, later.scheduled))
                        && own.scheduled.may_precede(&later.scheduled)
                        && later.scheduled.may_precede(&call)
                })
            });
            (holder.job, !detached && holder.scheduled.precedes(&call))
        })
        .collect()
}
