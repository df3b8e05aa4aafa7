//! The judge: compares the traces of all processes with the promises and the store.

use std::collections::BTreeMap;

use dq::backend::backend_from_url;
use dq::config::Environment;
use dq::{BoxError, QueueName};
use dq_testkit::faults::{LeaseBegin, read_traces, remaining};
use dq_testkit::fixture::retry;
use dq_testkit::trace::{ObservedCall, Trace};

use crate::{defects, limited};

/// Most violations have many neighbours.
const MAX_SHOWN: usize = 20;

pub(crate) async fn run(url: &str, directory: &str) -> Result<(), BoxError> {
    let begin = match url.starts_with("rabbitmq:") || url.starts_with("amqp") {
        true => LeaseBegin::Returned,
        false => LeaseBegin::Answered,
    };
    let trace = read_traces(directory, begin)?;
    println!("   {}", summary(&trace));
    let (config, environment) = (backend_from_url(url)?, Environment::default());
    let backend = defects::add(retry(|| config.connect(&environment)).await);
    let mut problems = Vec::new();
    for stats in retry(|| backend.stats(&[])).await {
        if stats.adds_up() == Some(false) {
            problems.push(format!("the counts of {} do not add up: {stats:?}", stats.queue));
        }
        if stats.live() > 0 {
            problems.push(format!("jobs of {} have not ended: {stats:?}", stats.queue));
        }
    }
    let limits = limited::limits(backend.capabilities());
    let remaining = retry(|| remaining(&*backend)).await;
    backend.close().await?;
    if trace.done_count() == 0 {
        problems.push("no job was done".to_owned());
    }
    problems.extend(trace.check(&remaining).iter().map(ToString::to_string));
    for (queue, flow) in limits {
        let found = trace.check_limits(&QueueName::new(queue)?, flow);
        let (running, of_group) = (found.most_running, found.most_of_group);
        println!("   {queue} ({flow}): at least {running} leases at once, {of_group} of one group");
        problems.extend(found.problems);
    }
    if problems.is_empty() {
        return Ok(());
    }
    let count = problems.len();
    problems.truncate(MAX_SHOWN);
    Err(format!("{count} violations:\n   {}", problems.join("\n   ")).into())
}

/// The number of calls per kind, and how many lost their answer.
fn summary(trace: &Trace) -> String {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for event in trace.events() {
        let (kind, is_lost) = match &event.call {
            ObservedCall::Schedule { answer, .. } => ("schedules", answer.is_none()),
            ObservedCall::Claim { .. } => ("leases", false),
            ObservedCall::FailedClaim => ("claims", true),
            ObservedCall::Settle { accepted, .. } => ("settlements", accepted.is_none()),
            ObservedCall::Renew { held, .. } => ("renewals", held.is_none()),
            ObservedCall::Cancel { cancelled, .. } => ("cancels", cancelled.is_none()),
            _ => ("other calls", false),
        };
        let (all, lost) = counts.entry(kind).or_default();
        *all += 1;
        *lost += usize::from(is_lost);
    }
    let counts =
        counts.iter().map(|(kind, (all, lost))| format!("{all} {kind} ({lost} unanswered)"));
    format!("{} jobs done; {}", trace.done_count(), counts.collect::<Vec<_>>().join(", "))
}
