use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq_core::config::Config;
use dq_core::{
    Backend, Dq, HandlerResult, Ingress, JobContext, MemoryBackend, Outcome, RawHandler,
    SystemClock,
};
use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Channel};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Time limit on a slow machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);

pub(crate) async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let holds = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, holds).await.is_ok(), "not within {LIMIT:?}: {what}");
}

pub(crate) fn memory() -> Arc<MemoryBackend> {
    Arc::new(MemoryBackend::new(Arc::new(SystemClock)))
}

/// Configures a source of the queue `Q`; `more` is further lines.
pub(crate) fn source(kind: &str, url: &str, from: &str, more: &str) -> String {
    let place = format!("type = '{kind}'\nurl = '{url}'\nfrom = '{from}'\nqueue = 'Q'");
    format!("[[ingress]]\n{place}\n{more}\n")
}

pub(crate) async fn client(backend: Arc<dyn Backend>, ingress: &str) -> Dq {
    let text = format!("[backend]\ntype = 'memory'\n{ingress}");
    let config = Config::from_toml(&text).unwrap();
    Dq::builder().config(config).backend(backend).connect().await.unwrap()
}

pub(crate) struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    pub(crate) fn start(dq: &Dq) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let ingress = Ingress::new(dq).unwrap();
        let task = async move { ingress.run_until(stopped.cancelled()).await };
        Self { stop, task: tokio::spawn(task) }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(LIMIT, self.task).await;
        ended.expect("the ingress ends").unwrap();
    }
}

#[derive(Clone, Default)]
pub(crate) struct Collector {
    runs: Arc<Mutex<Vec<String>>>,
    ran: Arc<Notify>,
}

#[dq_core::async_trait]
impl RawHandler for Collector {
    async fn handle(&self, job: JobContext) -> HandlerResult {
        let payload = String::from_utf8(job.raw_payload().to_vec())?;
        self.runs.lock().unwrap().push(payload);
        self.ran.notify_one();
        Ok(Outcome::Done)
    }
}

impl Collector {
    pub(crate) fn of(dq: &Dq) -> Self {
        let collector = Self::default();
        let runner = dq.runner().raw_handler("Q", collector.clone()).build().unwrap();
        tokio::spawn(runner.run_until(std::future::pending::<()>()));
        collector
    }

    pub(crate) async fn of_store(backend: Arc<dyn Backend>) -> Self {
        Self::of(&Dq::builder().backend(backend).connect().await.unwrap())
    }

    /// The sorted payloads of all runs, so that a message stored twice shows.
    pub(crate) fn payloads(&self) -> Vec<String> {
        let mut payloads = self.runs.lock().unwrap().clone();
        payloads.sort();
        payloads
    }

    pub(crate) async fn wait(&self, count: usize) {
        let all = async {
            loop {
                let mut payloads = self.payloads();
                payloads.dedup();
                if payloads.len() >= count {
                    return;
                }
                self.ran.notified().await;
            }
        };
        if tokio::time::timeout(LIMIT, all).await.is_err() {
            panic!("not within {LIMIT:?}: {count} jobs; there are only {:?}", self.payloads());
        }
    }
}

/// Publishes a persistent message. Waits for the broker only if the channel is in `confirm_select`
/// mode.
pub(crate) async fn publish(
    channel: &Channel,
    queue: &str,
    body: &str,
    properties: BasicProperties,
) {
    let (options, properties) = (BasicPublishOptions::default(), properties.with_delivery_mode(2));
    let published =
        channel.basic_publish("".into(), queue.into(), options, body.as_bytes(), properties);
    published.await.unwrap().await.unwrap();
}
