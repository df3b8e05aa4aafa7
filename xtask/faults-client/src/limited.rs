//! Queues with limits, which each process sets before it runs jobs.

use std::time::{Duration, Instant};

use dq::backend::{Backend, Capabilities};
use dq::config::QueueSettings;
use dq::prelude::*;
use dq::{Backoff, BoxError, ErrorKind, Flow, QueueCode, RunnerBuilder};

type Limits = fn() -> Flow;

/// Each queue's name and how long its jobs run. More jobs come than may run or start at once.
const QUEUES: [(&str, Duration, Limits); 4] = [
    ("FAULTS_LIMIT_1", Duration::from_millis(50), || Flow::UNLIMITED.max_running(1)),
    ("FAULTS_LIMIT_3", Duration::from_millis(250), || {
        Flow::UNLIMITED.max_running(3).group_max_running(2)
    }),
    ("FAULTS_LIMIT_50", Duration::from_millis(4_500), || {
        let rate = "15/1s burst 20".parse().expect("a rate");
        Flow::UNLIMITED.max_running(50).group_max_running(20).rate(rate)
    }),
    ("FAULTS_RATE", Duration::from_millis(50), || {
        Flow::UNLIMITED.rate("4/1s burst 1".parse().expect("a rate"))
    }),
];

/// One has as many jobs as the others together.
const GROUPS: [&str; 4] = ["large", "small", "large", "other"];

/// The limits of each queue that the store can keep.
pub(crate) fn limits(capabilities: Capabilities) -> Vec<(&'static str, Flow)> {
    let queues = QUEUES.iter().filter(|_| capabilities.flow).map(|(name, _, flow)| {
        let mut flow = flow();
        flow.group_max_running = flow.group_max_running.filter(|_| capabilities.groups);
        (*name, flow)
    });
    queues.collect()
}

/// Returns whether the store keeps them; a Redis cluster with several shards does not.
pub(crate) async fn set_limits(dq: &Dq, within: Duration) -> Result<bool, BoxError> {
    let begin = Instant::now();
    for (name, flow) in limits(dq.backend().capabilities()) {
        while let Err(error) = dq.queue(name)?.override_limits(flow).await {
            if error.kind() == ErrorKind::Unsupported {
                return Ok(false);
            }
            if begin.elapsed() > within {
                return Err(error.into());
            }
            tokio::time::sleep(100.millis()).await;
        }
    }
    Ok(dq.backend().capabilities().flow)
}

/// Schedules a job in each queue, and two in the queue with the largest limit. If the store does
/// not answer, there may be no such job.
pub(crate) async fn schedule(dq: &Dq, number: u64) {
    for (queue, copies) in QUEUES.iter().map(|(name, ..)| *name).zip([1, 1, 2, 1]) {
        for _copy in 0..copies {
            let Ok(queue) = dq.queue(queue) else { continue };
            let job = queue.schedule(number.to_string(), "application/json");
            let mut job = job.after((number % 23 * 100).millis());
            if dq.backend().capabilities().groups {
                job = job.group(GROUPS[usize::try_from(number / 8 % 4).expect("below 4")]);
            }
            let _ = job.await;
        }
    }
}

pub(crate) fn handlers(runner: RunnerBuilder) -> RunnerBuilder {
    let handlers = QUEUES.iter().map(|(queue, run, _)| Limited { queue, run: *run });
    handlers.fold(runner, RunnerBuilder::handler)
}

/// Every third job fails at first.
struct Limited {
    queue: &'static str,
    run: Duration,
}

impl DelayHandler for Limited {
    type Payload = u64;

    fn code(&self) -> impl QueueCode {
        self.queue
    }

    fn settings(&self) -> QueueSettings {
        let backoff = Backoff { initial: 300.millis(), factor: 1.0, ..Backoff::default() };
        QueueSettings::new().lease(3.seconds()).concurrency(64).max_losses(1_000).backoff(backoff)
    }

    async fn handle(&self, job: JobContext, number: u64) -> HandlerResult {
        job.sleep(self.run).await;
        if number.is_multiple_of(3) && job.attempt() == 1 {
            return Err("it fails at first".into());
        }
        Ok(Outcome::Done)
    }
}
