//! A store that offers only some capabilities.

use std::sync::Arc;

use dq_core::{Backend, Capabilities, Layer};

#[derive(Debug)]
pub(crate) struct Offering {
    pub(crate) store: Arc<dyn Backend>,
    pub(crate) capabilities: Capabilities,
}

impl Layer for Offering {
    fn inner(&self) -> &dyn Backend {
        &*self.store
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}
