//! `type = "memory"`, `memory:`.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;

use super::MemoryBackend;
use crate::backend::Backend;
use crate::config::{BackendConfig, ConnectUrl, Environment};
use crate::error::Result;

/// The memory backend has no settings.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryConfig {}

impl MemoryConfig {
    fn from_url(url: &ConnectUrl) -> Result<Box<dyn BackendConfig>> {
        url.expect_options(&[])?;
        Ok(Box::new(Self {}))
    }
}

#[typetag::deserialize(name = "memory")]
#[async_trait]
impl BackendConfig for MemoryConfig {
    async fn connect(&self, environment: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(MemoryBackend::new(Arc::clone(&environment.clock))))
    }
}

crate::register_backend! {
    name: "memory",
    schemes: ["memory"],
    from_url: MemoryConfig::from_url,
}
