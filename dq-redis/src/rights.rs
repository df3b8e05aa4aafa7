//! Finds missing rights of the server's user when connecting.

use dq_core::{ErrorKind, Result};

use crate::connect::Effect;
use crate::keys::Naming;
use crate::script::Script;
use crate::store::Store;

const CONNECT: &str = "connect";

/// The end of each script that tries commands.
const TRY: &str = include_str!("scripts/rights/try.lua");
const NATIVE: &str = include_str!("scripts/rights/native.lua");

impl Store {
    /// Tries every command of the scripts.
    ///
    /// # Errors
    /// `Config` naming the command, key or channel that the user has no right to.
    pub(crate) async fn prove_rights(&self) -> Result<()> {
        match &self.partitions.naming {
            Naming::Native { prefix } => {
                let keys = ["zset", "hash"].map(|kind| format!("{{{prefix}}}:rights:{kind}"));
                self.prove(&[NATIVE, TRY], &keys, &format!("{{{prefix}}}:wake:")).await
            }
            Naming::Redisson { prefix, .. } => {
                let own = |kind| format!("{prefix}:rights:{kind}:{{dq-rights}}");
                let java = |kind| format!("redisson_delay_queue{kind}:{{dq-rights}}");
                let keys = [own("zset"), own("hash"), own("list"), java("_timeout"), java("")];
                let parts = [NATIVE, include_str!("scripts/rights/redisson.lua"), TRY];
                self.prove(&parts, &keys, &java("_channel")).await
            }
        }
    }

    /// Tries the commands of the key expiry backend.
    pub(crate) async fn prove_alarms(&self, key: &str) -> Result<()> {
        let parts = [include_str!("scripts/rights/expiry.lua"), TRY];
        self.prove(&parts, &[key.to_owned()], "").await
    }

    /// Tries the command that waits at Java's lists. Not in a script: not every version allows that.
    pub(crate) async fn prove_blmove(&self) -> Result<()> {
        let Naming::Redisson { prefix, .. } = &self.partitions.naming else { return Ok(()) };
        let list = format!("{prefix}:rights:list:{{dq-rights}}");
        // Not a millisecond: Redis 6.2 rounds that to 0, which is no limit.
        let mut blmove = redis::cmd("BLMOVE");
        blmove.arg(&list).arg(&list).arg("LEFT").arg("LEFT").arg("0.01");
        unless_read_only(self.link.run(CONNECT, Effect::None, &blmove).await.map(drop))
    }

    async fn prove(&self, parts: &[&str], keys: &[String], channel: &str) -> Result<()> {
        let script = Script::new(parts, Effect::None);
        let mut call = script.on_keys(keys);
        call.arg(channel);
        unless_read_only(call.run(&self.link, CONNECT).await.map(drop))
    }
}

/// A server that refuses writes at the moment can still be inspected and, if it is full, emptied.
fn unless_read_only(tried: Result<()>) -> Result<()> {
    match tried {
        Err(error) if matches!(error.kind(), ErrorKind::Full | ErrorKind::ReadOnly) => Ok(()),
        tried => tried,
    }
}
