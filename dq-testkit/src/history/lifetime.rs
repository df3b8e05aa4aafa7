//! Extracts each job's lifetime from a trace.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Cancelled, JobId, JobKey, JobRef, LeasedJob, QueueName, Renewed, Rescheduled, Scheduled,
    Settled, Target, Timestamp, Verdict,
};

use super::event::{HistoryEvent, Interval, ObservedCall, OperatorAction};

#[derive(Debug, Default)]
pub(super) struct JobLifetime<'a> {
    /// Certain and possible calls.
    pub(super) stored: Vec<Effect>,
    /// Pin durations, with the calls.
    pub(super) pins: Vec<(Effect, Duration)>,
    /// Earliest start times, with the calls.
    pub(super) due_times: Vec<(Effect, Timestamp)>,
    /// `None` if the payload is unknown.
    pub(super) payloads: Vec<(Effect, Option<&'a Bytes>)>,
    pub(super) claims: Vec<Claim<'a>>,
    pub(super) settlements: Vec<Settlement<'a>>,
    /// Certain and possible renewals.
    pub(super) renewals: Vec<Renewal>,
    /// After a cancel or replacement, the job must not start.
    pub(super) revocations: Vec<Effect>,
    /// After this answer, the job starts only if it is stored again.
    pub(super) ended: Vec<Interval>,
    /// Remove the job unless it is running.
    pub(super) purges: Vec<Interval>,
    /// Remove the job if it is dead.
    pub(super) removals: Vec<Interval>,
    /// Replay the job if it is dead.
    pub(super) replays: Vec<Interval>,
}

impl JobLifetime<'_> {
    /// The calls that may have found the job dead.
    pub(super) fn while_dead<'a>(
        &'a self,
        calls: &'a [Interval],
    ) -> impl Iterator<Item = Interval> {
        let dead = |call: &&Interval| {
            self.settlements.iter().any(|settlement| {
                let dies = matches!(settlement.verdict, Verdict::Dead { .. });
                dies && settlement.possible() && !call.precedes(&settlement.interval)
            })
        };
        calls.iter().filter(dead).copied()
    }
}

/// A call that took effect, certainly or possibly.
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
        values.iter().filter(move |(set, _)| !outdated(set) && !call.precedes(&set.interval));
    values.map(|(_, value)| value)
}

#[derive(Debug)]
pub(super) struct Claim<'a> {
    pub(super) interval: Interval,
    pub(super) leased: &'a LeasedJob,
    pub(super) now: Timestamp,
}

#[derive(Debug)]
pub(super) struct Settlement<'a> {
    pub(super) interval: Interval,
    pub(super) token: u64,
    pub(super) verdict: &'a Verdict,
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

/// To resolve calls by key.
type KeyHolders<'a> = BTreeMap<(&'a QueueName, &'a JobKey), Vec<KeyHolder>>;

pub(super) fn lifetimes(events: &[HistoryEvent]) -> BTreeMap<JobId, JobLifetime<'_>> {
    let mut holders = KeyHolders::new();
    let mut queues: BTreeMap<JobId, &QueueName> = BTreeMap::new();
    for HistoryEvent { interval, call } in events {
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

/// Adds an event to each job that it affects, or may affect.
fn apply<'a>(
    HistoryEvent { interval, call }: &'a HistoryEvent,
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
            if let Some(Scheduled::Ended(ended)) = answer {
                lifetimes.entry(ended.id).or_default().ended.push(interval);
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
            if matches!(answer, Some(Scheduled::Created(_))) {
                return;
            }
            // A call that replaced another job with this key has not detached it.
            let replaces = matches!(answer, Some(Scheduled::Replaced(_)));
            let replacing = replaces.then_some((*job, interval));
            for (other, certain) in holders_of(holders, queue, key, interval, replacing) {
                if other != *job {
                    let revoked = effect(certain && answer.is_some());
                    lifetimes.entry(other).or_default().revocations.push(revoked);
                }
            }
        }
        ObservedCall::Claim { leased, now } => {
            let claim = Claim { interval, leased, now: *now };
            lifetimes.entry(leased.job.id).or_default().claims.push(claim);
        }
        ObservedCall::Settle { settlement, answer } => {
            let lifetime = lifetimes.entry(settlement.lease.job).or_default();
            lifetime.settlements.push(Settlement {
                interval,
                token: settlement.lease.token.0,
                verdict: &settlement.verdict,
                accepted: answer.map(|answer| answer == Settled::Accepted),
            });
            if let Verdict::Retry { due, .. } | Verdict::Again { due, .. } | Verdict::Snooze(due) =
                &settlement.verdict
                && *answer != Some(Settled::Stale)
            {
                lifetime.due_times.push((effect(answer.is_some()), due.resolve(interval.at)));
            }
            if let Verdict::Again { payload, .. } = &settlement.verdict
                && *answer != Some(Settled::Stale)
            {
                lifetime.payloads.push((effect(answer.is_some()), Some(payload)));
            }
        }
        ObservedCall::Renew { lease, until, answer } => {
            let until = match answer {
                Some(Renewed::Lost) => return,
                Some(Renewed::Until(until)) => *until,
                _ => *until,
            };
            let renewal = Renewal { effect: effect(answer.is_some()), token: lease.token.0, until };
            lifetimes.entry(lease.job).or_default().renewals.push(renewal);
        }
        ObservedCall::Cancel { job, answer } => {
            if matches!(answer, None | Some(Cancelled::Cancelled)) {
                for (id, certain) in targets(holders, job, interval) {
                    let revoked = effect(certain && answer.is_some());
                    lifetimes.entry(id).or_default().revocations.push(revoked);
                }
            }
        }
        ObservedCall::Reschedule { job, not_before, answer } => match answer {
            Some(Rescheduled::Moved(receipt)) => {
                let lifetime = lifetimes.entry(receipt.id).or_default();
                lifetime.due_times.push((effect(true), *not_before));
            }
            Some(_) => {}
            None => {
                for (id, _) in targets(holders, job, interval) {
                    let lifetime = lifetimes.entry(id).or_default();
                    lifetime.due_times.push((effect(false), *not_before));
                }
            }
        },
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
fn targets(holders: &KeyHolders<'_>, job: &JobRef, call: Interval) -> Vec<(JobId, bool)> {
    match &job.target {
        Target::Id(id) => vec![(*id, true)],
        Target::Key(key) => holders_of(holders, &job.queue, key, call, None),
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
    let possible = all.iter().filter(|holder| !call.precedes(&holder.scheduled));
    possible
        .map(|holder| {
            // A later job may have detached this one for good: a repeated call does not return the
            // key.
            let detached = all.iter().filter(|own| own.job == holder.job).any(|own| {
                all.iter().any(|later| {
                    later.detaches
                        && later.job != own.job
                        && replacing != Some((later.job, later.scheduled))
                        && !later.scheduled.precedes(&own.scheduled)
                        && !call.precedes(&later.scheduled)
                })
            });
            (holder.job, !detached && holder.scheduled.precedes(&call))
        })
        .collect()
}
