//! Finds missing rights when connecting, by trying each command on its own keys.

use dq_core::{ErrorKind, Result};
use redis::Value;

use crate::connect::CommandError;
use crate::error::{Effect, is_from_replica, replica};
use crate::key_layout::RightsTest;
use crate::script::Script;
use crate::store::RedisBackend;

const TRY: &str = include_str!("scripts/rights/try.lua");

impl RedisBackend {
    /// Errors: `Config` naming the missing right's command, key or channel; `ReadOnly` for a
    /// replica.
    pub(crate) async fn prove_rights(&self) -> Result<()> {
        let RightsTest { commands, keys } = self.layout().rights();
        self.prove(&commands.concat(), &keys).await
    }

    pub(crate) async fn prove_expiry_rights(&self, key: String) -> Result<()> {
        self.prove(include_str!("scripts/rights/expiry.lua"), &[key]).await
    }

    async fn prove(&self, commands: &str, keys: &[String]) -> Result<()> {
        let script = Script::new(&[], &(commands.to_owned() + TRY), Effect::Repeatable);
        let mut call = script.on_keys(keys);
        call.arg(self.layout().test_channel());
        // Both ways, because `query` sends no text while the server knows the script.
        let answer = match call.query_by_text(&self.link).await {
            Ok(_) => call.query(&self.link).await,
            error => error,
        };
        // Sentinels and clusters lead to another server soon.
        if let Err(CommandError::Failed(error)) = &answer
            && is_from_replica(error)
            && !self.link.server().origin().finds_primary
        {
            return Err(replica());
        }
        unless_read_only(self.link.result(Effect::Repeatable, answer))
    }
}

/// Accepts a server that refuses writes at the moment: operators can inspect and empty it.
pub(crate) fn unless_read_only(tried: Result<Value>) -> Result<()> {
    match tried {
        Err(error) if matches!(error.kind(), ErrorKind::Full | ErrorKind::ReadOnly) => Ok(()),
        tried => tried.map(drop),
    }
}
