//! Layouts: bringing a queue's in line with the settings, and following what others made of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dq_core::{Error, ErrorKind, QueueName, Result};
use futures_util::future::try_join_all;
use redis::Value;
use tokio::time::Instant;

use crate::error::unexpected;
use crate::keys::Lane;
use crate::reply::{self, Reply};
use crate::script::Call;
use crate::shards::lanes::Spread;
use crate::shards::layout::Layout;
use crate::store::Store;

/// How long others wait for a replay. A process that dies in one keeps them for so long.
const REPLAY: Duration = Duration::from_secs(2);

/// Between two looks whether a replay has ended.
const REST: Duration = Duration::from_millis(5);

/// How often a call begins anew because a layout has changed.
const TRIES: u32 = 200;

/// What a shard holds.
struct Held {
    layout: String,
    paused: bool,
    /// The queue never had a job.
    unused: bool,
}

/// Counts how often a call was begun.
#[derive(Debug, Default)]
pub(crate) struct Tries(u32);

impl Tries {
    /// One more.
    ///
    /// # Errors
    /// When there were so many that layouts cannot be what is wrong.
    pub(crate) fn again(&mut self, operation: &'static str) -> Result<()> {
        self.0 += 1;
        if self.0 > TRIES { unexpected(operation) } else { Ok(()) }
    }
}

impl Store {
    /// Gives queues the number of shards that the settings want, at their first use.
    pub(crate) async fn adopt<'a>(
        &self,
        operation: &'static str,
        queues: impl IntoIterator<Item = &'a QueueName>,
    ) -> Result<()> {
        for (queue, count) in self.shards.wanted(queues) {
            // Rare, so kept out of every call's future.
            Box::pin(self.resize(operation, queue, count)).await?;
            self.shards.settle(queue);
        }
        Ok(())
    }

    async fn resize(&self, operation: &'static str, queue: &QueueName, count: u16) -> Result<()> {
        let first = self.lanes.of(queue);
        let mut tries = Tries::default();
        loop {
            tries.again(operation)?;
            let held = self.held(operation, &first, &[]).await?;
            let Some(known) = Layout::parse(&held.layout) else {
                return Err(unreadable(operation, queue, &held.layout));
            };
            let unused = held.unused && held.layout.is_empty();
            let next = match () {
                () if known.current() == count => known,
                () if unused => Layout::fresh(count),
                () => known.resized(count),
            };
            if self.swap(operation, &first, &held.layout, &next, unused).await? {
                self.lanes.learn(queue, &next.to_string());
                return self.raise_all(operation, queue).await;
            }
        }
    }

    /// Sets the layout of a queue if it is still the one that is expected. `false` if it is not.
    async fn swap(
        &self,
        operation: &'static str,
        first: &Lane,
        expected: &str,
        next: &Layout,
        unused: bool,
    ) -> Result<bool> {
        let next = next.to_string();
        if expected == next {
            return Ok(true);
        }
        let unused = if unused { "1" } else { "0" };
        let held = self.held(operation, first, &["swap", expected, &next, unused]).await?;
        Ok(held.layout == next)
    }

    /// Brings all shards up to the layout of the first.
    pub(crate) async fn raise_all(&self, operation: &'static str, queue: &QueueName) -> Result<()> {
        let spread = self.lanes.spread(queue);
        if spread.is_single() {
            return Ok(());
        }
        let first = self.held(operation, spread.lane(0), &[]).await?;
        self.lanes.follow(queue, &first.layout);
        let spread = self.lanes.spread(queue);
        // The first shard itself lacks it only if its server has lost what it had written.
        let raised =
            spread.lanes.iter().filter(|lane| lane.shard > 0 || lane.belief != first.layout);
        try_join_all(raised.map(|lane| self.raise(operation, lane, &first))).await?;
        Ok(())
    }

    /// Brings one shard up to the layout of the first, with which it is also paused. That is read
    /// each time: who pauses a queue does it in the first shard first.
    async fn raise(&self, operation: &'static str, lane: &Lane, first: &Held) -> Result<()> {
        let paused = if first.paused { "1" } else { "0" };
        let held = self.held(operation, lane, &["raise", &lane.belief, paused]).await?;
        self.lanes.learn(&lane.queue, &held.layout);
        Ok(())
    }

    /// What a shard holds, after a change of it if one is asked for.
    async fn held(&self, operation: &'static str, lane: &Lane, change: &[&str]) -> Result<Held> {
        let mut call = self.scripts.layout.on([lane]);
        for argument in change {
            call.arg(*argument);
        }
        let answer = call.run(&self.link, operation).await?;
        let read = |answer| {
            let mut reply = Reply::new(answer)?;
            let layout = String::from_utf8_lossy(&reply.bytes()?).into_owned();
            Some(Held { layout, paused: reply.number()? == 1, unused: reply.number()? == 1 })
        };
        match read(answer) {
            Some(held) => Ok(held),
            None => unexpected(operation),
        }
    }

    /// Runs a call that is refused unless the shard holds the layout that is believed in. `None` if
    /// it was: what is known of the layout has changed, or the shard has, and the call is to be made
    /// anew.
    pub(crate) async fn ask(
        &self,
        operation: &'static str,
        lane: &Lane,
        call: Call<'_>,
    ) -> Result<Option<Value>> {
        let answer = call.run(&self.link, operation).await?;
        let Some(held) = reply::other_layout(&answer) else {
            return Ok(Some(answer));
        };
        if !self.lanes.learn(&lane.queue, held) {
            // The shard lacks what is known: its turn has not come, or who began has died.
            Box::pin(self.raise_all(operation, &lane.queue)).await?;
        }
        Ok(None)
    }

    /// The lanes of all shards that a queue has now.
    pub(crate) async fn all_lanes(
        &self,
        operation: &'static str,
        queue: &QueueName,
    ) -> Result<Vec<Arc<Lane>>> {
        self.adopt(operation, [queue]).await?;
        let first = self.lanes.of(queue);
        // A key that holds something else is for the caller to find.
        if let Ok(held) = self.held(operation, &first, &[]).await {
            self.lanes.learn(queue, &held.layout);
        }
        Ok(self.lanes.spread(queue).lanes.clone())
    }

    /// Takes over what a shard said beside its answers: a layout, or nothing.
    pub(crate) fn hear(&self, lane: &Lane, layout: &[u8]) {
        if !layout.is_empty() {
            self.lanes.learn(&lane.queue, &String::from_utf8_lossy(layout));
        }
    }

    /// What is known of each of these queues.
    pub(crate) fn spreads<'a>(
        &self,
        queues: impl Iterator<Item = &'a QueueName>,
    ) -> HashMap<&'a QueueName, Arc<Spread>> {
        let mut spreads = HashMap::new();
        for queue in queues {
            spreads.entry(queue).or_insert_with(|| self.lanes.spread(queue));
        }
        spreads
    }

    /// The same, once no replay is under way in any of them.
    pub(crate) async fn calm_spreads<'a>(
        &self,
        operation: &'static str,
        queues: impl Iterator<Item = &'a QueueName> + Clone,
    ) -> Result<HashMap<&'a QueueName, Arc<Spread>>> {
        loop {
            let spreads = self.spreads(queues.clone());
            match spreads.iter().find(|(_, spread)| spread.layout.replaying) {
                Some((queue, _)) => Box::pin(self.outlast_replay(operation, queue)).await?,
                None => return Ok(spreads),
            }
        }
    }

    /// Waits until no replay is under way, and ends one that takes too long.
    async fn outlast_replay(&self, operation: &'static str, queue: &QueueName) -> Result<()> {
        let deadline = Instant::now() + REPLAY;
        loop {
            let spread = self.lanes.spread(queue);
            if !spread.layout.replaying {
                return Ok(());
            }
            if Instant::now() < deadline {
                tokio::time::sleep(REST).await;
                let held = self.held(operation, spread.lane(0), &[]).await?;
                self.lanes.learn(queue, &held.layout);
            } else {
                self.end_replay(operation, queue, &spread.layout).await?;
            }
        }
    }

    /// Takes an epoch in which only this call makes dead jobs of a queue live.
    pub(crate) async fn begin_replay(
        &self,
        operation: &'static str,
        queue: &QueueName,
    ) -> Result<Arc<Spread>> {
        let mut tries = Tries::default();
        loop {
            tries.again(operation)?;
            self.outlast_replay(operation, queue).await?;
            let spread = self.lanes.spread(queue);
            let next = spread.layout.succeeded(true);
            let expected = spread.layout.to_string();
            if self.swap(operation, spread.lane(0), &expected, &next, false).await? {
                self.lanes.learn(queue, &next.to_string());
                self.raise_all(operation, queue).await?;
                return Ok(self.lanes.spread(queue));
            }
            let held = self.held(operation, spread.lane(0), &[]).await?;
            self.lanes.learn(queue, &held.layout);
        }
    }

    /// Ends the epoch of a replay, unless somebody else has.
    pub(crate) async fn end_replay(
        &self,
        operation: &'static str,
        queue: &QueueName,
        mine: &Layout,
    ) -> Result<()> {
        let first = self.lanes.of(queue);
        let next = mine.succeeded(false);
        if self.swap(operation, &first, &mine.to_string(), &next, false).await? {
            self.lanes.learn(queue, &next.to_string());
        }
        self.raise_all(operation, queue).await
    }
}

fn unreadable(operation: &'static str, queue: &QueueName, layout: &str) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "the shards of queue {queue} are noted as {layout:?}, which this version cannot read"
        ),
    )
    .remedy("use the newest version that uses this prefix, or another prefix")
    .operation(operation)
}
