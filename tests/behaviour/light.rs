//! Light processes of the RabbitMQ backend. One process with a replica, shared by all trials, serves
//! them, and makes the calls that need a replica.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use dq::backend::{
    Announcement, Backend, BrowseParams, ClaimParams, Claimed, Finding, Layer, Page, Renewal,
    Renewed, Settled, Settlement, Wakeups,
};
use dq::config::Environment;
use dq::rabbit::{QueueKind, RabbitBackend, RabbitConfig, ReplicaMode};
use dq::{QueueName, Result, async_trait};
use dq_servers::shared_rabbitmq;
use dq_testkit::behaviour::{BackendUnderTest, StoreClock, StoreUnderTest};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// Stores that each trial opens as a light process.
#[derive(Debug, Clone)]
pub(crate) struct Light;

#[async_trait]
impl BackendUnderTest for Light {
    async fn prepare(&self) -> Result<Box<dyn StoreUnderTest>> {
        Ok(Box::new(Self))
    }
}

#[async_trait]
impl StoreUnderTest for Light {
    async fn open(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        let server = serving().await;
        let light = loop {
            let light = connect(ReplicaMode::Lazy, environment).await?;
            if light.is_light() {
                break light;
            }
            // The broker does not know the server yet.
            light.close().await?;
        };
        Ok(Arc::new(Served { light, server }))
    }

    fn clock(&self) -> StoreClock {
        StoreClock::Real
    }
}

async fn connect(replica: ReplicaMode, environment: &Environment) -> Result<RabbitBackend> {
    static URL: LazyLock<String> = LazyLock::new(|| shared_rabbitmq().vhost("light"));
    let mut config = RabbitConfig::new(URL.as_str());
    config.queues = QueueKind::Classic;
    config.replica = replica;
    // Longer than any call takes on a busy machine.
    config.response_timeout = Duration::from_secs(60);
    RabbitBackend::connect(&config, environment).await
}

/// The runtime of the process that serves, which outlives those of the trials.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));

/// Runs a call of the process that serves in its own runtime.
async fn on_server<T: Send + 'static>(call: impl Future<Output = T> + Send + 'static) -> T {
    RUNTIME.spawn(call).await.expect("the call does not panic")
}

/// The process that serves.
async fn serving() -> Arc<RabbitBackend> {
    static SERVER: OnceCell<Arc<RabbitBackend>> = OnceCell::const_new();
    let open = || {
        on_server(async {
            let server = connect(ReplicaMode::Eager, &Environment::default()).await;
            Arc::new(server.expect("the server works"))
        })
    };
    Arc::clone(SERVER.get_or_init(open).await)
}

/// A light process, and the one with a replica for the calls that need one.
#[derive(Debug)]
struct Served {
    light: RabbitBackend,
    server: Arc<RabbitBackend>,
}

#[async_trait]
impl Layer for Served {
    fn inner(&self) -> &dyn Backend {
        &self.light
    }

    async fn before(&self, method: &'static str) -> Result<()> {
        assert!(self.light.is_light(), "the light process has opened the log before {method}");
        // Fails once the light process is closed.
        self.light.now().await.map(drop)
    }

    async fn listen(&self, queues: &[QueueName]) -> Result<Wakeups> {
        let (server, queues) = (Arc::clone(&self.server), queues.to_vec());
        on_server(async move { server.listen(&queues).await }).await
    }

    async fn claim(&self, params: ClaimParams<'_>) -> Result<Claimed> {
        let server = Arc::clone(&self.server);
        let (wants, limit) = (params.wants.to_vec(), params.limit);
        let worker = params.worker.to_owned();
        on_server(async move { server.claim(ClaimParams::new(&wants, limit, &worker)).await }).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let (server, settlements) = (Arc::clone(&self.server), settlements.to_vec());
        on_server(async move { server.settle(&settlements).await }).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let (server, renewals) = (Arc::clone(&self.server), renewals.to_vec());
        on_server(async move { server.renew(&renewals).await }).await
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        let (server, queue) = (Arc::clone(&self.server), params.queue.clone());
        let BrowseParams { state, after, limit, payloads, order, .. } = params;
        on_server(async move {
            let params = BrowseParams::new(&queue, state).after(after).limit(limit);
            server.browse(params.payloads(payloads).order(order)).await
        })
        .await
    }

    async fn announce(&self, announcement: Announcement) -> Result<()> {
        let server = Arc::clone(&self.server);
        on_server(async move { server.announce(announcement).await }).await
    }

    async fn check(&self) -> Vec<Finding> {
        let server = Arc::clone(&self.server);
        on_server(async move { server.check().await }).await
    }
}
