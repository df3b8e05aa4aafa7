//! Announcements of runners.

use dq_core::{Announced, Announcement, Result, Timestamp};
use redis::Value;

use crate::args::millis_arg;
use crate::error::unexpected;
use crate::reply::Reply;
use crate::store::Store;

const ANNOUNCE: &str = "announce";
const RUNNERS: &str = "runners";

impl Store {
    /// Announces a runner, or withdraws it if `ttl` is zero.
    pub(crate) async fn announce(&self, announcement: &Announcement) -> Result<()> {
        // 0 withdraws; `millis_arg` returns at least 1.
        let ttl = match announcement.ttl.is_zero() {
            true => 0,
            false => millis_arg(announcement.ttl),
        };
        let keys = self.partitions.layout.runners();
        let mut call = self.scripts.runners.on_keys(&keys);
        call.arg(&announcement.name).arg(&announcement.info[..]).arg(ttl);
        call.run(&self.link, ANNOUNCE).await.map(drop)
    }

    pub(crate) async fn runners(&self) -> Result<Vec<Announced>> {
        let keys = self.partitions.layout.runners();
        let answer = self.scripts.runners.on_keys(&keys).run(&self.link, RUNNERS).await?;
        let Some(mut runners) = read_runners(answer) else {
            return unexpected(RUNNERS);
        };
        runners.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(runners)
    }
}

fn read_runners(answer: Value) -> Option<Vec<Announced>> {
    let mut reply = Reply::new(answer)?;
    let _now = reply.number()?;
    let mut runners = Vec::new();
    while !reply.is_empty() {
        let (name, stored, until) = (reply.bytes()?, reply.bytes()?, reply.number()?);
        let (at, _) = stored.split_first_chunk()?;
        runners.push(Announced::new(
            String::from_utf8_lossy(&name).into_owned(),
            stored.slice(at.len()..),
            Timestamp::from_millis(i64::from_be_bytes(*at)),
            Timestamp::from_millis(until),
        ));
    }
    Some(runners)
}
