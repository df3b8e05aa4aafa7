//! Announcements of runners.

use dq_core::{Announced, Announcement, Result, Timestamp};

use crate::args::millis_arg;
use crate::error::unexpected;
use crate::reply::Reply;
use crate::store::RedisBackend;

impl RedisBackend {
    /// Announces a runner, or withdraws it if `ttl` is zero. Restores limits if the server may have
    /// lost data: the announcement before, or the connection.
    pub(crate) async fn announce_runner(&self, announcement: &Announcement) -> Result<()> {
        // The script withdraws a runner for 0, which `millis_arg` never returns.
        let is_withdrawal = announcement.ttl.is_zero();
        let ttl = if is_withdrawal { 0 } else { millis_arg(announcement.ttl) };
        let keys = self.layout().runners();
        let mut call = self.scripts.runners.on_keys(&keys);
        call.arg(&announcement.name).arg(&announcement.info[..]).arg(ttl);
        let mut reply = Reply::new(call.run(&self.link).await?)?;
        let _now = reply.time()?;
        if is_withdrawal {
            return Ok(());
        }
        let was_missing = reply.number()? == 1;
        self.restore_limits(was_missing).await
    }

    pub(crate) async fn list_runners(&self) -> Result<Vec<Announced>> {
        let keys = self.layout().runners();
        let mut reply = Reply::new(self.scripts.runners.on_keys(&keys).run(&self.link).await?)?;
        let _now = reply.time()?;
        let mut runners = Vec::new();
        while !reply.is_empty() {
            let (name, stored, until) = (reply.bytes()?, reply.bytes()?, reply.time()?);
            let (announced_at, _) = stored.split_first_chunk().ok_or_else(unexpected)?;
            runners.push(Announced::new(
                String::from_utf8_lossy(&name).into_owned(),
                stored.slice(announced_at.len()..),
                Timestamp::from_millis(i64::from_be_bytes(*announced_at)),
                until,
            ));
        }
        runners.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(runners)
    }
}
