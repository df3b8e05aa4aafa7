//! Checks that no more jobs of a queue, or of a group, were leased at once than its limits allow,
//! and that no more started than its rate allows.

use std::collections::BTreeMap;
use std::time::Duration;

use dq_core::{Flow, JobId, QueueName, Rate};

use super::check::lease_ends;
use super::event::{ObservedCall, TraceEvent};
use super::lifetime::{Claim, JobLifetime, lifetimes};

/// What a trace says about a queue's limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitsCheck {
    /// Where limits were certainly exceeded.
    pub problems: Vec<String>,
    /// The most leases that were certainly held at once.
    pub most_running: usize,
    /// The same of one group.
    pub most_of_group: usize,
}

/// A claimed job's group, its lifetime, and the claim.
type Lease<'a> = (Option<&'a str>, &'a JobLifetime<'a>, &'a Claim<'a>);

pub(super) fn check(events: &[TraceEvent], queue: &QueueName, flow: Flow) -> LimitsCheck {
    let mut groups: BTreeMap<JobId, Option<&str>> = BTreeMap::new();
    for event in events {
        if let ObservedCall::Schedule { job, queue: of_job, group, .. } = &event.call
            && of_job == queue
        {
            groups.insert(*job, group.as_deref());
        }
    }
    let lifetimes = lifetimes(events);
    let of_queue = lifetimes.iter().filter_map(|(job, it)| Some((*groups.get(job)?, it)));
    let leases: Vec<Lease<'_>> = of_queue
        .flat_map(|(group, lifetime)| lifetime.claims.iter().map(move |it| (group, lifetime, it)))
        .collect();
    let mut found = LimitsCheck::default();
    for (group, _, claim) in &leases {
        let held: Vec<Option<&str>> = leases
            .iter()
            .filter(|(_, lifetime, other)| is_held(lifetime, other, claim))
            .map(|(group, ..)| *group)
            .collect();
        let of_group = held.iter().filter(|it| group.is_some() && *it == group).count();
        found.most_running = found.most_running.max(held.len());
        found.most_of_group = found.most_of_group.max(of_group);
        let of = queue.as_str();
        for (what, count, max) in [
            (of.to_owned(), held.len(), flow.max_running),
            (format!("a group of {of}"), of_group, flow.group_max_running),
        ] {
            if max.is_some_and(|max| count > max as usize) {
                let now = claim.now;
                let problem = format!("the limit of {what} is exceeded at {now}: {count} leases");
                found.problems.push(problem);
            }
        }
    }
    found.problems.extend(flow.rate.and_then(|rate| exceeded_rate(&leases, queue, rate)));
    found
}

/// Returns the first span in which more jobs certainly started than the rate allows: its burst, and
/// one for each of its intervals in the span.
///
/// A job started at some time within its claim, so it counts only in spans with the whole claim: a
/// slow claim can hide an excess, but not make one up. A released job counts too.
fn exceeded_rate(leases: &[Lease<'_>], queue: &QueueName, rate: Rate) -> Option<String> {
    // Both times are whole milliseconds, rounded down.
    let mut starts: Vec<_> = leases
        .iter()
        .map(|(.., claim)| {
            (claim.interval.at, claim.interval.returned_at + Duration::from_millis(1))
        })
        .collect();
    starts.sort_unstable_by_key(|(_, returned)| *returned);
    starts.iter().find_map(|(begin, _)| {
        let in_span = starts.iter().filter(|(at, _)| at >= begin).zip(1..);
        let mut spans = in_span.map(|((_, end), count)| (end.since(*begin), count));
        let (span, count) = spans.find(|(span, count)| {
            let intervals = span.as_micros() / rate.interval().as_micros();
            *count > u128::from(rate.max_burst()) + intervals
        })?;
        Some(format!("the rate of {queue} is exceeded at {begin}: {count} starts in {span:?}"))
    })
}

/// Whether the lease was certainly held when `claim` took effect, or was granted by the same call.
fn is_held(lifetime: &JobLifetime<'_>, lease: &Claim<'_>, claim: &Claim<'_>) -> bool {
    let call = &claim.interval;
    if lease.interval == *call {
        return true;
    }
    let may_be_settled = lifetime.settlements.iter().any(|settlement| {
        settlement.token == lease.token
            && settlement.possible()
            && settlement.interval.may_precede(call)
    });
    let until = lease_ends(lifetime, lease, call).min().unwrap_or_default();
    lease.interval.precedes(call) && !may_be_settled && claim.now < until
}
