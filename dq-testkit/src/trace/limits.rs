//! Checks that no more jobs of a queue, or of a group, were leased at once than its limits allow.

use std::collections::BTreeMap;

use dq_core::{Flow, JobId, QueueName};

use super::check::lease_ends;
use super::event::{ObservedCall, TraceEvent};
use super::lifetime::{Claim, JobLifetime, lifetimes};

/// A claimed job's group, its lifetime, and the claim.
type Lease<'a> = (Option<&'a str>, &'a JobLifetime<'a>, &'a Claim<'a>);

pub(super) fn check(events: &[TraceEvent], queue: &QueueName, flow: Flow) -> Vec<String> {
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
    let mut problems = Vec::new();
    for (group, _, claim) in &leases {
        let held: Vec<Option<&str>> = leases
            .iter()
            .filter(|(_, lifetime, other)| is_held(lifetime, other, claim))
            .map(|(group, ..)| *group)
            .collect();
        let of_group = held.iter().filter(|it| group.is_some() && *it == group).count();
        for (what, count, max) in [
            (queue.as_str(), held.len(), flow.max_running),
            (group.unwrap_or_default(), of_group, flow.group_max_running),
        ] {
            if max.is_some_and(|max| count > max as usize) {
                let now = claim.now;
                problems.push(format!("the limit of {what} is exceeded at {now}: {count} leases"));
            }
        }
    }
    problems
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
