//! The Rust side: a client, and a runner with a handler that reports deliveries.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dq::backend::Scheduled;
use dq::prelude::*;
use dq_servers::Redis;
use serde_json::Value as Json;
use tokio::sync::{mpsc, oneshot};

use crate::peer::Version;

/// The queue in all tests. Each test has its own server.
pub(crate) const QUEUE: &str = "INTEROP";

/// What the handler got, and when.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) payload: Json,
    /// Milliseconds since 1970, as is `due_ms`.
    pub(crate) at_ms: u64,
    pub(crate) due_ms: u64,
    pub(crate) attempt: u32,
}

#[derive(Clone)]
pub(crate) struct Reporter(mpsc::UnboundedSender<Delivery>);

/// Reports each delivery. The payload "fail" fails.
#[delay_handler("INTEROP", max_attempts = 2, backoff(initial = "50ms", max = "50ms"))]
pub(crate) async fn report(
    ctx: JobContext,
    State(reporter): State<Reporter>,
    payload: Json,
) -> HandlerResult {
    let fails = payload == "fail";
    reporter.0.send(Delivery {
        payload,
        at_ms: now_ms(),
        due_ms: ctx.due().as_millis().unsigned_abs(),
        attempt: ctx.attempt(),
    })?;
    if fails { Err("the payload asks for a failure".into()) } else { Ok(Outcome::Done) }
}

/// A client of this crate.
pub(crate) struct Rust {
    pub(crate) dq: Dq,
}

impl Rust {
    /// Connects with this Redisson version's member format. `options` are further URL parameters,
    /// each after an `&`.
    pub(crate) async fn connect(redis: &Redis, version: Version, options: &str) -> Self {
        let format = if version.has_legacy_members() { "legacy" } else { "current" };
        let port = redis.port();
        let url =
            format!("redisson://127.0.0.1:{port}/0?response_timeout=60s&format={format}{options}");
        Self { dq: Dq::connect(&url).await.unwrap() }
    }

    pub(crate) async fn schedule(&self, payload: Json, delay: Duration) -> Scheduled {
        self.try_schedule(payload, delay).await.unwrap()
    }

    pub(crate) async fn try_schedule(
        &self,
        payload: Json,
        delay: Duration,
    ) -> dq::Result<Scheduled> {
        self.dq.schedule::<report>(payload).after(delay).await
    }

    pub(crate) fn queue(&self) -> dq::QueueHandle {
        self.dq.queue_of::<report>().unwrap()
    }

    pub(crate) fn run(&self) -> Running {
        let (sender, deliveries) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let runner = self.dq.runner().only([QUEUE]).state(Reporter(sender)).build().unwrap();
        let task = tokio::spawn(async move {
            runner.run_until(async { drop(stopped.await) }).await.unwrap();
        });
        Running { deliveries, stop, task }
    }
}

/// A running runner.
pub(crate) struct Running {
    deliveries: mpsc::UnboundedReceiver<Delivery>,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    pub(crate) async fn next(&mut self, max_wait: Duration) -> Delivery {
        let next = tokio::time::timeout(max_wait, self.deliveries.recv()).await;
        next.expect("a delivery in time").expect("the runner runs")
    }

    /// Stops the runner. Returns the deliveries that [`next`](Self::next) has not returned.
    pub(crate) async fn stop(mut self) -> Vec<Delivery> {
        self.stop.send(()).ok();
        self.task.await.unwrap();
        let mut rest = Vec::new();
        while let Ok(delivery) = self.deliveries.try_recv() {
            rest.push(delivery);
        }
        rest
    }
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}
