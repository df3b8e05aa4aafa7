//! Rights that are missing: told when connecting.

use dq_core::{ErrorKind, Result};

use crate::connect::Effect;
use crate::keys::Naming;
use crate::script::Script;
use crate::store::Store;

const CONNECT: &str = "connect";

/// How each script of rights ends.
const PROVE: &str = include_str!("scripts/rights/prove.lua");
const NATIVE: &str = include_str!("scripts/rights/native.lua");

impl Store {
    /// Refuses a user who lacks a right that some script would need.
    pub(crate) async fn prove_rights(&self) -> Result<()> {
        match &self.lanes.naming {
            Naming::Native { prefix } => {
                let keys = ["zset", "hash"].map(|kind| format!("{{{prefix}}}:rights:{kind}"));
                self.prove(&[NATIVE, PROVE], &keys, &format!("{{{prefix}}}:wake:")).await
            }
            Naming::Redisson { prefix, .. } => {
                let ours = |kind| format!("{prefix}:rights:{kind}:{{dq-rights}}");
                let java = |kind| format!("redisson_delay_queue{kind}:{{dq-rights}}");
                let keys = [ours("zset"), ours("hash"), ours("list"), java("_timeout"), java("")];
                let parts = [NATIVE, include_str!("scripts/rights/redisson.lua"), PROVE];
                self.prove(&parts, &keys, &java("_channel")).await
            }
        }
    }

    /// The same for what sets alarms.
    pub(crate) async fn prove_alarms(&self, key: &str) -> Result<()> {
        let parts = [include_str!("scripts/rights/expiry.lua"), PROVE];
        self.prove(&parts, &[key.to_owned()], "").await
    }

    /// The same for the watch of Java's target lists: not every version runs BLMOVE inside a script.
    pub(crate) async fn prove_blmove(&self) -> Result<()> {
        let Naming::Redisson { prefix, .. } = &self.lanes.naming else { return Ok(()) };
        let list = format!("{prefix}:rights:list:{{dq-rights}}");
        // Redis 6.2 takes a single millisecond for none, which is for ever.
        let mut peek = redis::cmd("BLMOVE");
        peek.arg(&list).arg(&list).arg("LEFT").arg("LEFT").arg("0.01");
        allowed(self.link.run(CONNECT, Effect::None, &peek).await.map(drop))
    }

    async fn prove(&self, parts: &[&str], keys: &[String], channel: &str) -> Result<()> {
        let script = Script::new(parts, Effect::None);
        let mut call = script.on_keys(keys);
        call.arg(channel);
        allowed(call.run(&self.link, CONNECT).await.map(drop))
    }
}

/// A server that takes nothing now can still be looked at and, if it is full, emptied.
fn allowed(proven: Result<()>) -> Result<()> {
    match proven {
        Err(error) if matches!(error.kind(), ErrorKind::Full | ErrorKind::ReadOnly) => Ok(()),
        proven => proven,
    }
}
