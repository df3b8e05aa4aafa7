//! A drained store that is already open.

use std::sync::Arc;

use dq_core::config::{BackendConfig, Environment};
use dq_core::{Backend, Result, async_trait};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(crate) struct OpenStore {
    #[serde(skip)]
    store: Option<Arc<dyn Backend>>,
}

impl OpenStore {
    pub(crate) fn boxed(store: Arc<dyn Backend>) -> Box<dyn BackendConfig> {
        Box::new(Self { store: Some(store) })
    }
}

#[typetag::deserialize(name = "open")]
#[async_trait]
impl BackendConfig for OpenStore {
    async fn connect(&self, _: &Environment) -> Result<Arc<dyn Backend>> {
        Ok(self.store.clone().expect("the store is open"))
    }
}
