//! Renews leases.

use dq_core::{Renewal, Renewed, Result};

use crate::engine::Engine;
use crate::error::LostReply;
use crate::log::{command, reply_only};

impl Engine {
    pub(crate) async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>> {
        let command = command::Renew(renewals.iter().map(Into::into).collect());
        self.log.call("renew", LostReply::OutcomeUnknown, command, reply_only).await
    }
}
