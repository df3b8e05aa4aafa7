//! The native Redis backend with sharded queues, which a URL cannot configure.

use std::sync::Arc;
use std::time::Duration;

use dq::async_trait;
use dq::backend::{Backend, Capabilities, Layer};
use dq::config::Environment;
use dq::redis::{RedisBackend, RedisConfig};
use dq::{QueueName, Result};
use dq_testkit::behaviour::{BackendUnderTest, StoreClock, StoreUnderTest};

#[derive(Debug, Clone)]
pub(crate) struct Sharded {
    /// Returns the same server each time, because each opening of a trial's store calls it.
    url: fn() -> String,
    shards: u16,
}

impl Sharded {
    pub(crate) fn new(url: fn() -> String, shards: u16) -> Self {
        Self { url, shards }
    }
}

#[async_trait]
impl BackendUnderTest for Sharded {
    async fn prepare(&self) -> Result<Box<dyn StoreUnderTest>> {
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl StoreUnderTest for Sharded {
    async fn open(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        let mut config = RedisConfig::new((self.url)());
        config.prefix = "sharded".to_owned();
        // Longer than any call takes on a busy machine.
        config.response_timeout = Duration::from_secs(60);
        // `*` stands for every queue.
        config.shards.insert(QueueName::new("*")?, self.shards);
        let backend = RedisBackend::connect(&config, environment).await?;
        if config.url.expose().starts_with("redis+cluster") {
            return Ok(Arc::new(WithoutLimits(backend)));
        }
        Ok(Arc::new(backend))
    }

    fn clock(&self) -> StoreClock {
        StoreClock::Real
    }
}

/// In a cluster, limits need a queue without shards. The tests of dq-redis check that others are
/// refused.
#[derive(Debug)]
struct WithoutLimits(RedisBackend);

#[async_trait]
impl Layer for WithoutLimits {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.flow = false;
        capabilities.groups = false;
        capabilities
    }
}
