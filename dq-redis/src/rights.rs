//! Finds missing rights of the server's user when connecting, by trying each command on keys of its
//! own.

use dq_core::{ErrorKind, Result};

use crate::connect::{CommandError, Effect};
use crate::error::{is_from_replica, replica};
use crate::keys::Naming;
use crate::script::Script;
use crate::store::Store;

const CONNECT: &str = "connect";

/// Follows the lists of commands: tries each.
const TRY: &str = include_str!("scripts/rights/try.lua");
const NATIVE: &str = include_str!("scripts/rights/native.lua");

impl Store {
    /// Tries every command that the scripts run.
    ///
    /// # Errors
    /// `Config` naming the command, key or channel for which the user has no right; `ReadOnly` for a
    /// replica.
    pub(crate) async fn prove_rights(&self) -> Result<()> {
        match &self.partitions.naming {
            Naming::Native { prefix } => {
                let keys = ["zset", "hash"].map(|kind| format!("{{{prefix}}}:rights:{kind}"));
                self.prove(&[NATIVE, TRY], &keys).await
            }
            Naming::Redisson { prefix, .. } => {
                let own = |kind| format!("{prefix}:rights:{kind}:{{dq-rights}}");
                let java = |kind| format!("redisson_delay_queue{kind}:{{dq-rights}}");
                let keys = [own("zset"), own("hash"), own("list"), java("_timeout"), java("")];
                let parts = [NATIVE, include_str!("scripts/rights/redisson.lua"), TRY];
                self.prove(&parts, &keys).await
            }
        }
    }

    /// Tries the commands of the key expiry backend.
    pub(crate) async fn prove_expiry_rights(&self, key: &str) -> Result<()> {
        let parts = [include_str!("scripts/rights/expiry.lua"), TRY];
        self.prove(&parts, &[key.to_owned()]).await
    }

    /// Tries BLMOVE, which watches Java's lists. Not in a script, where not every version allows
    /// it.
    pub(crate) async fn prove_blmove(&self) -> Result<()> {
        let Naming::Redisson { prefix, .. } = &self.partitions.naming else { return Ok(()) };
        let list = format!("{prefix}:rights:list:{{dq-rights}}");
        // 10 ms: Redis 6.2 rounds 1 ms to 0, which means no time limit.
        let mut blmove = redis::cmd("BLMOVE");
        blmove.arg(&list).arg(&list).arg("LEFT").arg("LEFT").arg("0.01");
        unless_read_only(self.link.run(CONNECT, Effect::None, &blmove).await.map(drop))
    }

    async fn prove(&self, parts: &[&str], keys: &[String]) -> Result<()> {
        let script = Script::new(&[], &parts.concat(), Effect::None);
        let mut call = script.on_keys(keys);
        call.arg(self.partitions.naming.test_channel());
        let answer = call.query(&self.link).await;
        // Sentinels and clusters lead to another server soon.
        if let Err(CommandError::Failed(error)) = &answer
            && is_from_replica(error)
            && !self.link.server().origin().finds_primary
        {
            return Err(replica());
        }
        unless_read_only(self.link.backend_result(CONNECT, Effect::None, answer).map(drop))
    }
}

/// Accepts a server that refuses writes at the moment: it can be inspected and, if it is full,
/// emptied.
fn unless_read_only(tried: Result<()>) -> Result<()> {
    match tried {
        Err(error) if matches!(error.kind(), ErrorKind::Full | ErrorKind::ReadOnly) => Ok(()),
        tried => tried,
    }
}
