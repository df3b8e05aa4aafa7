//! The native Redis backend with sharded queues, which a URL cannot configure.

use std::sync::Arc;
use std::time::Duration;

use dq::async_trait;
use dq::backend::Backend;
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
        Ok(Arc::new(RedisBackend::connect(&config, environment).await?))
    }

    fn clock(&self) -> StoreClock {
        StoreClock::Real
    }
}
