//! Renews leases.

use dq_core::{Renewal, Renewed, Result};

use crate::engine::Engine;
use crate::error::LostReply;
use crate::log::reply_only;
use crate::log::wire::Command;

impl Engine {
    pub(crate) async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let command = Command::Renew(renewals.iter().map(Into::into).collect());
        self.log.call("renew", LostReply::OutcomeUnknown, command, reply_only).await
    }
}
