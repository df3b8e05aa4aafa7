//! Replaying dead jobs of a queue whose names have several homes.
//!
//! A dead job may be in a former home of its key while new jobs of the key are created in the
//! current one, so no single script can see whether the key is free. Each step of such a replay
//! therefore takes an epoch for itself (see `shards.rs`), asks the other homes, and makes the jobs
//! live whose keys are free.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use dq_core::{Due, QueueName, Result};

use crate::batch::CHUNK;
use crate::error::unexpected;
use crate::operate::{Changed, REPLAY, Which};
use crate::reply::{self, Reply};
use crate::shards::lanes::Spread;
use crate::store::Store;

/// A dead job: handle and tail, and its key or nothing.
type Dead = (Bytes, Bytes);

impl Store {
    /// One step. `None` if somebody else has changed the layout meanwhile.
    pub(crate) async fn replay_alone(
        &self,
        queue: &QueueName,
        shard: u16,
        due: Due,
        which: Which<'_>,
    ) -> Result<Option<Changed>> {
        let spread = self.begin_replay(REPLAY, queue).await?;
        let changed = self.replay_step(&spread, shard, due, which).await;
        self.end_replay(REPLAY, queue, &spread.layout).await?;
        changed
    }

    async fn replay_step(
        &self,
        spread: &Spread,
        shard: u16,
        due: Due,
        which: Which<'_>,
    ) -> Result<Option<Changed>> {
        let Some((dead, next)) = self.dead_keys(spread, shard, which).await? else {
            return Ok(None);
        };
        let Some(taken) = self.taken_elsewhere(spread, shard, &dead).await? else {
            return Ok(None);
        };
        let free: Vec<&[u8]> = dead
            .iter()
            .filter(|(_, key)| key.is_empty() || !taken.contains(key))
            .map(|(name, _)| &name[..])
            .collect();
        if free.is_empty() {
            return Ok(Some(Changed { number: 0, next }));
        }
        let changed = self.change_dead(spread.lane(shard), REPLAY, due, Which::Named(&free));
        Ok(changed.await?.map(|changed| Changed { next, ..changed }))
    }

    /// Dead jobs, and from where to go on.
    async fn dead_keys(
        &self,
        spread: &Spread,
        shard: u16,
        which: Which<'_>,
    ) -> Result<Option<(Vec<Dead>, Option<(i64, Bytes)>)>> {
        let lane = spread.lane(shard);
        let mut call = self.scripts.dead_keys.on([&**lane]);
        call.arg(CHUNK);
        which.write(&mut call);
        let Some(answer) = self.ask(REPLAY, lane, call).await? else {
            return Ok(None);
        };
        let read = |answer| {
            let mut reply = Reply::new(answer)?;
            let (at, handle) = (reply.bytes()?, reply.bytes()?);
            let next = match reply::number(&redis::Value::BulkString(at.to_vec())) {
                Some(at) if !handle.is_empty() => Some((at, handle)),
                _ => None,
            };
            let mut dead = Vec::new();
            while !reply.is_empty() {
                dead.push((reply.bytes()?, reply.bytes()?));
            }
            Some((dead, next))
        };
        match read(answer) {
            Some(read) => Ok(Some(read)),
            None => unexpected(REPLAY),
        }
    }

    /// Keys of these jobs that are live in another shard.
    async fn taken_elsewhere(
        &self,
        spread: &Spread,
        shard: u16,
        dead: &[Dead],
    ) -> Result<Option<HashSet<Bytes>>> {
        let mut questions: BTreeMap<u16, Vec<&Bytes>> = BTreeMap::new();
        for (_, key) in dead.iter().filter(|(_, key)| !key.is_empty()) {
            let mut homes = spread.layout.former_homes(key);
            homes.push(spread.layout.home(key));
            for home in homes.into_iter().filter(|home| *home != shard) {
                questions.entry(home).or_default().push(key);
            }
        }
        let mut taken = HashSet::new();
        for (home, keys) in questions {
            let lane = spread.lane(home);
            let mut call = self.scripts.alive.on([&**lane]);
            for key in &keys {
                call.arg(&key[..]);
            }
            let Some(answer) = self.ask(REPLAY, lane, call).await? else {
                return Ok(None);
            };
            let answers = reply::bytes(answer).unwrap_or_default();
            if answers.len() != keys.len() {
                return unexpected(REPLAY);
            }
            let live = keys.into_iter().zip(answers).filter(|(_, answer)| *answer == b'1');
            taken.extend(live.map(|(key, _)| key.clone()));
        }
        Ok(Some(taken))
    }
}
