//! Renews leases.

use dq_core::{Renewal, Renewed, Result};

use crate::engine::Engine;
use crate::error::Effect;
use crate::log::{Command, Reply};

impl Engine {
    pub(crate) async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let command = Command::Renew(renewals.iter().map(Into::into).collect());
        let read = |_: &mut _, reply, _| match reply {
            Reply::Renewed(results) => results,
            _ => Vec::new(),
        };
        self.log.call("renew", Effect::Lasting, command, read).await
    }
}
