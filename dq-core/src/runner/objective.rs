//! Compares each queue's lateness with its objective, such as "99% < 1s". Observers hear when one
//! is missed, and why.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::events::Event;
use super::recent::{Comparison, LateStart, StartWindow};
use super::shared::RunnerShared;
use super::slots::QueueIndex;
use super::store::{Start, StoreContext};
use crate::backend::Backend;
use crate::client::RegisteredRunner;
use crate::error::Result;
use crate::model::{Flow, Job, LatenessCause, LatenessFacts, LatenessStatus, QueueName};
use crate::sync::lock;

/// Time between comparisons; each one queries the store.
const INTERVAL: Duration = Duration::from_secs(15);

pub(super) fn record_start(context: &StoreContext, flow: &Flow, job: &Job, start: Start) {
    let runner = &context.runner;
    let Some((queue, window)) = runner.starts_of(&job.queue) else { return };
    let (now, late_by) = (runner.clock().elapsed(), start.started.since(job.due));
    if !window.objective.is_late(late_by) {
        window.record(now, None);
        return;
    }
    let skew_ms = *lock(&context.skew);
    let built_at = runner.built_at.as_millis().saturating_add(skew_ms.unwrap_or_default());
    let in_outage = context.claim_time.waited_in_outage(now.saturating_sub(late_by));
    // Slots are also full after an outage, but then they are not why the backlog is late.
    let waited_for_slot = start.waited_for_slot && in_outage < late_by / 2;
    let facts = LatenessFacts {
        claim_time: context.claim_time.longest(now).max(Some(in_outage)),
        skew: skew_ms.map(skew),
        ..runner_facts(runner, queue, window, waited_for_slot)
    };
    let late_start = LateStart {
        cause: LatenessCause::of(&facts).or_else(|| window.hindrance(job, *flow)),
        due_before_runner_start: job.due.as_millis() < built_at,
    };
    window.record(now, Some(late_start));
}

/// Returns whether the store held back jobs, so that a job that starts a moment later was late by
/// it.
fn is_of_store(cause: LatenessCause) -> bool {
    use LatenessCause::{GroupFull, MaxRunning, Paused, Rate, Throttled};
    matches!(cause, Paused | MaxRunning | Rate | Throttled | GroupFull)
}

pub(super) async fn run(runner: Arc<RunnerShared>, contexts: Vec<Arc<StoreContext>>) -> Infallible {
    let with_objective = runner.queues.iter().filter(|served| served.starts.is_some());
    let queues: Vec<_> = with_objective.map(|served| served.queue.clone()).collect();
    find_unserved(&runner).await;
    let mut missed = BTreeSet::new();
    loop {
        runner.clock().sleep(INTERVAL).await;
        if let Err(error) = compare(&runner, &contexts, &queues, &mut missed).await {
            tracing::debug!(%error, "the lateness objectives were not checked");
            runner.observers.notify(&Event::StoreFailed(&error));
        }
    }
}

/// Marks queues that no other runner serves. Once, at start: from then on this runner serves them,
/// so only jobs due before it can be late because no runner existed.
async fn find_unserved(runner: &RunnerShared) {
    let main = &runner.client.stores.main;
    if !main.capabilities().registry {
        return;
    }
    let announced = match runner.call("runners", main.runners()).await {
        Ok(announced) => announced,
        Err(error) => {
            tracing::debug!(%error, "the other runners are not known");
            runner.observers.notify(&Event::StoreFailed(&error));
            return;
        }
    };
    let others = announced.into_iter().filter(|other| *other.name != *runner.name);
    let others: Vec<_> = others.map(RegisteredRunner::from).collect();
    let may_serve = |other: &RegisteredRunner, queue: &QueueName| {
        other.info.as_ref().map_or(true, |info| {
            info.omitted_queues > 0 || info.queues.iter().any(|served| served.queue == *queue)
        })
    };
    for served in &runner.queues {
        if let Some(window) = &served.starts
            && !others.iter().any(|other| may_serve(other, &served.queue))
        {
            window.set_unserved();
        }
    }
}

async fn compare(
    runner: &RunnerShared,
    contexts: &[Arc<StoreContext>],
    queues: &[QueueName],
    missed: &mut BTreeSet<QueueName>,
) -> Result<()> {
    let stores = &runner.client.stores;
    let all = runner.call("stats", stores.stats(queues)).await?;
    let now = if all.iter().any(|stats| stats.ready > 0) {
        Some(runner.call("now", stores.main.now()).await?)
    } else {
        None
    };
    for stats in &all {
        let Some((queue, window)) = runner.starts_of(&stats.queue) else { continue };
        let waiting = match now {
            Some(now) => {
                let overdue = stores.overdue(stats, now, window.objective.within());
                runner.call("forecast", overdue).await?
            }
            None => 0,
        };
        let elapsed = runner.clock().elapsed();
        let hindrance = LatenessCause::of(&LatenessFacts {
            paused: stats.paused,
            limit: stats.limit(),
            has_group_limit: stats.may_wait_for_groups(),
            claim_time: contexts.iter().filter_map(|store| store.claim_time.longest(elapsed)).max(),
            skew: contexts.iter().filter_map(|store| lock(&store.skew).map(skew)).max(),
            ..runner_facts(runner, queue, window, runner.slots.unused(queue) == 0)
        });
        let of_store = hindrance.filter(|cause| stats.ready > 0 && is_of_store(*cause));
        let flow = stats.flow.in_force();
        window.note_comparison(Comparison { flow, hindrance: of_store });
        let counts = window.counts(elapsed);
        let status = LatenessStatus::new(stats.queue.clone(), counts, waiting, hindrance);
        report(runner, status, missed);
    }
    Ok(())
}

fn report(runner: &RunnerShared, status: LatenessStatus, missed: &mut BTreeSet<QueueName>) {
    let queue = &status.queue;
    match (status.is_missed(), missed.contains(queue)) {
        (true, false) => {
            let cause = status.cause.map_or_else(
                || "not observed".to_owned(),
                |cause| format!("{cause}; {}", cause.remedy()),
            );
            tracing::warn!(%queue, cause, "the lateness objective is missed: {status}");
            missed.insert(queue.clone());
            runner.observers.notify(&Event::LatenessMissed(&status));
        }
        (false, true) => {
            tracing::info!(%queue, "the lateness objective is met again: {status}");
            missed.remove(queue);
            runner.observers.notify(&Event::LatenessRecovered(&status));
        }
        _ => {}
    }
}

/// Returns this runner's facts about its own queue, without store facts.
///
/// `waits_for_slot` says that no slot is free, or that none was free while the started job was due.
fn runner_facts(
    runner: &RunnerShared,
    queue: QueueIndex,
    window: &StartWindow,
    waits_for_slot: bool,
) -> LatenessFacts {
    let served = &runner.queues[queue];
    let slots = served.policy.concurrency.min(runner.settings.concurrency);
    let (_, running_by_queue) = runner.slots.used();
    // Only needed to tell why jobs wait for a slot.
    let run_time = waits_for_slot
        .then(|| served.recent.histograms(runner.clock().elapsed()).run_time.mean())
        .flatten();
    LatenessFacts {
        within: Some(window.objective.within()),
        runners: Some(1),
        free_slots: waits_for_slot.then_some(0),
        slots: slots as u64,
        running: running_by_queue[queue] as u64,
        run_time,
        ..LatenessFacts::default()
    }
}

const fn skew(millis: i64) -> Duration {
    Duration::from_millis(millis.unsigned_abs())
}
