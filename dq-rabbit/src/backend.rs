//! The backend: each call goes to the broker.

use std::sync::Arc;

use dq_core::config::Environment;
use dq_core::{Backend, Error, ErrorKind, Result};

use crate::config::RabbitConfig;

/// Delayed jobs in RabbitMQ.
#[derive(Debug)]
pub struct RabbitBackend;

impl RabbitBackend {
    /// Connects, and declares what is needed.
    ///
    /// # Errors
    /// `Config` for settings, credentials or rights that will not do; `Unavailable`; `Incompatible` for
    /// a broker that is too old.
    pub async fn connect(
        config: &RabbitConfig,
        _environment: &Environment,
    ) -> Result<Arc<dyn Backend>> {
        config.validate()?;
        Err(Error::new(ErrorKind::Internal, "the RabbitMQ backend is not in this version")
            .operation("connect"))
    }
}
