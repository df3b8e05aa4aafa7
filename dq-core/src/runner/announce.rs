//! Announces the runner to the other users of its stores, who list it with its queues and load.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::events::Event;
use super::recent::RecentRuns;
use super::shared::RunnerShared;
use super::store::StoreContext;
use crate::backend::{Announcement, Backend, Checked};
use crate::config::QueuePolicy;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{QueueName, RunnerInfo, RunnerQueue};
use crate::sync::lock;

/// Time between announcements. Long, because an idle runner should make few calls.
const INTERVAL: Duration = Duration::from_secs(15);

/// A runner stays listed until three announcements in a row have failed.
const VALID_FOR: Duration = Duration::from_secs(60);

/// Time limit for an announcement, shorter than the interval.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) async fn run(context: Arc<StoreContext>) -> Infallible {
    run_with(&context, |host| Some(info(&context, host))).await
}

/// Announces what `info` returns, and withdraws the announcement when it returns `None`.
pub(super) async fn run_with(
    context: &StoreContext,
    info: impl Fn(&str) -> Option<RunnerInfo> + Send,
) -> Infallible {
    if !context.store.capabilities().registry {
        return std::future::pending().await;
    }
    let runner = &context.runner;
    let host = host_name();
    let (mut has_failed, mut is_announced) = (false, false);
    loop {
        // Created before the call, so that an unanswered call does not delay the next.
        let next = runner.clock().sleep(INTERVAL);
        let info = info(&host);
        let was_announced = std::mem::replace(&mut is_announced, info.is_some());
        if !is_announced && !was_announced {
            next.await;
            continue;
        }
        let call = announce(context, info);
        let result = runner.call_within(CALL_TIMEOUT, "announce", call).await;
        if let Err(error) = &result {
            if !has_failed {
                tracing::warn!(%error, "the runner could not announce itself; trying again");
            }
            runner.observers.notify(&Event::StoreFailed(error));
        }
        has_failed = result.is_err();
        next.await;
    }
}

pub(super) async fn withdraw(runner: &RunnerShared, stores: &[Arc<Checked>]) {
    let withdrawals = stores.iter().filter(|store| store.capabilities().registry).map(|store| {
        let withdrawal = Announcement::new(&*runner.name, "", Duration::ZERO);
        async move { store.announce(withdrawal).await }
    });
    tokio::select! {
        biased;
        results = futures_util::future::join_all(withdrawals) => {
            for error in results.into_iter().filter_map(Result::err) {
                tracing::debug!(%error, "the runner could not withdraw its announcement");
            }
        }
        () = async { runner.clock().sleep(WITHDRAW_TIMEOUT).await } => {
            tracing::debug!("the runner could not withdraw its announcement in time");
        }
    }
}

async fn announce(context: &StoreContext, info: Option<RunnerInfo>) -> Result<()> {
    let name = &*context.runner.name;
    let Some(info) = info else {
        return context.store.announce(Announcement::new(name, "", Duration::ZERO)).await;
    };
    let info = info.encode(Announcement::MAX_BYTES).map_err(|error| {
        Error::new(ErrorKind::Codec, "the announcement does not encode").source(error)
    })?;
    context.store.announce(Announcement::new(name, info, VALID_FOR)).await
}

fn info(context: &StoreContext, host: &str) -> RunnerInfo {
    let runner = &context.runner;
    let now = runner.clock().elapsed();
    let (running, running_by_queue) = runner.slots.used();
    let queues = runner.queues.iter().zip(running_by_queue);
    let queues = queues.filter(|(served, _)| !served.queue.is_reserved());
    let queues = queues.map(|(served, running)| {
        let mut info = queue_info(&served.queue, &served.policy, &served.recent, running, now);
        info.objective = served.starts.as_ref().map(|starts| starts.counts(now));
        info
    });
    let concurrency = runner.settings.concurrency;
    RunnerInfo { queues: queues.collect(), ..process_info(context, host, concurrency, running) }
}

/// Returns a runner's details without queues.
pub(super) fn process_info(
    context: &StoreContext,
    host: &str,
    concurrency: usize,
    running: usize,
) -> RunnerInfo {
    let runner = &context.runner;
    let claim_time = context.claim_time.longest(runner.clock().elapsed());
    RunnerInfo {
        format: RunnerInfo::FORMAT,
        host: host.to_owned(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started: runner.built_at,
        stopping: runner.stop.is_cancelled(),
        concurrency: concurrency as u64,
        running: running as u64,
        skew_ms: *lock(&context.skew),
        claim_ms: claim_time.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
        queues: Vec::new(),
        omitted_queues: 0,
        workers: Vec::new(),
    }
}

pub(super) fn queue_info(
    queue: &QueueName,
    policy: &QueuePolicy,
    recent: &RecentRuns,
    running: usize,
    now: Duration,
) -> RunnerQueue {
    let mut info = RunnerQueue::new(queue.clone(), policy.concurrency as u64);
    let runs = recent.histograms(now);
    (info.priority, info.reserve) = (policy.priority, policy.reserve as u64);
    info.running = running as u64;
    (info.lateness, info.run_time) = (runs.lateness, runs.run_time);
    info.failed = recent.failed();
    info
}

fn host_name() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let variable = || ["HOSTNAME", "COMPUTERNAME"].iter().find_map(|name| std::env::var(name).ok());
    kernel.or_else(variable).unwrap_or_default().trim().to_owned()
}
