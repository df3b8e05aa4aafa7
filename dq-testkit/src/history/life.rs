//! The history of one job, gathered from the history of the store.

use std::collections::BTreeMap;

use dq_core::{
    Cancelled, JobId, JobKey, JobRef, LeasedJob, QueueName, Renewed, Rescheduled, Scheduled,
    Settled, Target, Timestamp, Verdict,
};

use super::{Event, Intervention, Span, What};

/// What happened to one job, in order of the beginnings.
#[derive(Debug, Default)]
pub(super) struct Life<'a> {
    /// Calls that stored it, or may have.
    pub(super) births: Vec<Maybe>,
    /// Times before which it must not start, each from the call that set it.
    pub(super) bounds: Vec<(Maybe, Timestamp)>,
    pub(super) starts: Vec<Start<'a>>,
    pub(super) ends: Vec<End<'a>>,
    /// Renewals that were granted, or may have been.
    pub(super) renewals: Vec<Renewal>,
    /// Calls after which it must not start any more: cancelled, or replaced.
    pub(super) revocations: Vec<Maybe>,
    /// Operators' calls that remove whatever does not run.
    pub(super) purges: Vec<Span>,
    /// Operators' calls that remove it if it is dead.
    pub(super) removals: Vec<Span>,
    /// Operators' calls that make it live again if it is dead.
    pub(super) replays: Vec<Span>,
}

impl Life<'_> {
    /// Of calls about the dead, those that may have found this job dead.
    pub(super) fn finding_it_dead<'a>(&'a self, calls: &'a [Span]) -> impl Iterator<Item = Span> {
        let dead = |call: &&Span| {
            self.ends.iter().any(|end| {
                let dies = matches!(end.verdict, Verdict::Dead { .. });
                dies && end.possible() && !call.before(&end.span)
            })
        };
        calls.iter().filter(dead).copied()
    }
}

/// A lease that was kept.
#[derive(Debug)]
pub(super) struct Renewal {
    pub(super) call: Maybe,
    pub(super) token: u64,
    /// The end of the lease, or a time before it if the answer was lost.
    pub(super) until: Timestamp,
}

/// A call, and whether it is known to have taken effect on this job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Maybe {
    pub(super) span: Span,
    pub(super) certain: bool,
}

#[derive(Debug)]
pub(super) struct Start<'a> {
    pub(super) span: Span,
    pub(super) leased: &'a LeasedJob,
    pub(super) now: Timestamp,
}

#[derive(Debug)]
pub(super) struct End<'a> {
    pub(super) span: Span,
    pub(super) token: u64,
    pub(super) verdict: &'a Verdict,
    /// `None` if the answer was lost.
    pub(super) accepted: Option<bool>,
}

impl End<'_> {
    /// Whether it may have taken effect.
    pub(super) fn possible(&self) -> bool {
        self.accepted != Some(false)
    }
}

/// Who was handed in under which key, to find the job that a call by key was about.
type Holders<'a> = BTreeMap<(&'a QueueName, &'a JobKey), Vec<(JobId, Span)>>;

/// Gathers the lives of all jobs.
pub(super) fn lives(events: &[Event]) -> BTreeMap<JobId, Life<'_>> {
    let mut holders = Holders::new();
    let mut queues: BTreeMap<JobId, &QueueName> = BTreeMap::new();
    for Event { span, what } in events {
        if let What::Scheduled { job, queue, key, answer, .. } = what
            && answer.is_none_or(|answer| answer.is_stored())
        {
            queues.insert(*job, queue);
            if let Some(key) = key {
                holders.entry((queue, key)).or_default().push((*job, *span));
            }
        }
    }
    let mut lives: BTreeMap<JobId, Life<'_>> = BTreeMap::new();
    for event in events {
        note(event, &holders, &queues, &mut lives);
    }
    lives
}

fn note<'a>(
    Event { span, what }: &'a Event,
    holders: &Holders<'a>,
    queues: &BTreeMap<JobId, &'a QueueName>,
    lives: &mut BTreeMap<JobId, Life<'a>>,
) {
    let span = *span;
    let maybe = |certain| Maybe { span, certain };
    match what {
        What::ClaimFailed => {}
        What::Scheduled { job, queue, key, not_before, answer } => {
            if answer.is_some_and(|answer| !answer.is_stored()) {
                return;
            }
            let life = lives.entry(*job).or_default();
            life.births.push(maybe(answer.is_some()));
            life.bounds.push((maybe(answer.is_some()), *not_before));
            let Some(key) = key else { return };
            if matches!(answer, Some(Scheduled::Created(_))) {
                return;
            }
            // It took another's place, or may have.
            for (other, certain) in holding(holders, queue, key, span) {
                if other != *job {
                    let certain = certain && answer.is_some();
                    lives.entry(other).or_default().revocations.push(Maybe { span, certain });
                }
            }
        }
        What::Started { leased, now } => {
            let start = Start { span, leased, now: *now };
            lives.entry(leased.job.id).or_default().starts.push(start);
        }
        What::Finished { settlement, answer } => {
            let life = lives.entry(settlement.lease.job).or_default();
            life.ends.push(End {
                span,
                token: settlement.lease.token.0,
                verdict: &settlement.verdict,
                accepted: answer.map(|answer| answer == Settled::Accepted),
            });
            if let Verdict::Retry(due) | Verdict::Snooze(due) = &settlement.verdict
                && *answer != Some(Settled::Stale)
            {
                life.bounds.push((maybe(answer.is_some()), due.resolve(span.at)));
            }
        }
        What::Renewed { lease, until, answer } => {
            let until = match answer {
                Some(Renewed::Lost) => return,
                Some(Renewed::Until(until)) => *until,
                None => *until,
            };
            let renewal = Renewal { call: maybe(answer.is_some()), token: lease.token.0, until };
            lives.entry(lease.job).or_default().renewals.push(renewal);
        }
        What::Cancelled { job, answer } => {
            if matches!(answer, None | Some(Cancelled::Cancelled)) {
                for (id, certain) in meant(holders, job, span) {
                    let certain = certain && answer.is_some();
                    lives.entry(id).or_default().revocations.push(Maybe { span, certain });
                }
            }
        }
        What::Moved { job, not_before, answer } => match answer {
            Some(Rescheduled::Moved(receipt)) => {
                let life = lives.entry(receipt.id).or_default();
                life.bounds.push((maybe(true), *not_before));
            }
            Some(_) => {}
            None => {
                for (id, _) in meant(holders, job, span) {
                    lives.entry(id).or_default().bounds.push((maybe(false), *not_before));
                }
            }
        },
        What::Operated { queue, what } => {
            let named = match what {
                Intervention::Replay { jobs, .. } | Intervention::Remove { jobs } => jobs.as_ref(),
                Intervention::Purge => None,
            };
            let affected = queues
                .iter()
                .filter(|(id, of)| **of == queue && named.is_none_or(|jobs| jobs.contains(id)));
            for (id, _) in affected {
                let life = lives.entry(*id).or_default();
                match what {
                    Intervention::Replay { not_before, .. } => {
                        life.replays.push(span);
                        life.bounds.push((maybe(false), *not_before));
                    }
                    Intervention::Remove { .. } => life.removals.push(span),
                    Intervention::Purge => life.purges.push(span),
                }
            }
        }
    }
}

/// The jobs that a call may have been about, each with whether it is known to be that one.
fn meant(holders: &Holders<'_>, job: &JobRef, span: Span) -> Vec<(JobId, bool)> {
    match &job.target {
        Target::Id(id) => vec![(*id, true)],
        Target::Key(key) => holding(holders, &job.queue, key, span),
    }
}

/// The jobs that may have held a key during a call. At most one of them did: one that was handed
/// in before the call is meant for certain only if no other was handed in with the call.
fn holding(
    holders: &Holders<'_>,
    queue: &QueueName,
    key: &JobKey,
    span: Span,
) -> Vec<(JobId, bool)> {
    let Some(all) = holders.get(&(queue, key)) else {
        return Vec::new();
    };
    let possible = all.iter().filter(|(_, birth)| !span.before(birth));
    possible.map(|(id, birth)| (*id, birth.before(&span))).collect()
}
