//! An operator's interventions.

use bytes::Bytes;
use dq_core::{Due, Error, ErrorKind, JobId, Operation, QueueName, Result};
use redis::Value;

use crate::batch::CHUNK;
use crate::error::unexpected;
use crate::handle;
use crate::keys::Lane;
use crate::reply::{self, Reply};
use crate::schedule::due as due_text;
use crate::script::Call;
use crate::shards::adopt::Tries;
use crate::store::Store;

const OPERATE: &str = "operate";
pub(crate) const REPLAY: &str = "replay";
const REMOVE: &str = "remove";

/// Which dead jobs of a shard one call is about.
#[derive(Clone, Copy)]
pub(crate) enum Which<'a> {
    /// Some of all, from the first on or after this one.
    After(Option<&'a (i64, Bytes)>),
    /// These, by handle and tail.
    Named(&'a [&'a [u8]]),
}

impl Which<'_> {
    /// As scripts read it.
    pub(crate) fn write(self, call: &mut Call<'_>) {
        match self {
            Self::After(None) => {
                call.arg("a");
            }
            Self::After(Some((at, handle))) => {
                call.arg("a").arg(*at).arg(&handle[..]);
            }
            Self::Named(names) => {
                call.arg("n");
                for name in names {
                    call.arg(*name);
                }
            }
        }
    }
}

/// What one call did to dead jobs.
pub(crate) struct Changed {
    pub(crate) number: u64,
    /// From where to go on, if there may be more.
    pub(crate) next: Option<(i64, Bytes)>,
}

impl Store {
    /// Carries an operation out and says how many jobs (or queues) changed.
    pub(crate) async fn operate(&self, operation: Operation<'_>) -> Result<u64> {
        self.adopt(OPERATE, [operation.queue()]).await?;
        match operation {
            Operation::Replay { queue, jobs, due } => self.dead(queue, REPLAY, due, jobs).await,
            Operation::Remove { queue, jobs } => self.dead(queue, REMOVE, Due::NOW, jobs).await,
            Operation::Pause { queue } => self.pause(queue, true).await,
            Operation::Resume { queue } => self.pause(queue, false).await,
            Operation::Purge { queue } => self.purge(queue).await,
            operation => Err(Error::new(
                ErrorKind::Unsupported,
                format!("the Redis backends do not know the operation {operation:?}"),
            )
            .operation(OPERATE)),
        }
    }

    /// How many shards of a queue there are. A call may hear of more, so it is asked again each time.
    fn width(&self, queue: &QueueName) -> u16 {
        self.lanes.spread(queue).layout.width()
    }

    async fn dead(
        &self,
        queue: &QueueName,
        what: &'static str,
        due: Due,
        jobs: Option<&[JobId]>,
    ) -> Result<u64> {
        let names: Option<Vec<_>> =
            jobs.map(|jobs| jobs.iter().map(|job| handle::full(*job)).collect());
        let names: Option<Vec<&[u8]>> =
            names.as_ref().map(|names| names.iter().map(|name| &name[..]).collect());
        let (mut changed, mut shard) = (0, 0);
        while shard < self.width(queue) {
            changed += match &names {
                None => self.all_dead(queue, shard, what, due).await?,
                Some(names) => {
                    let mut changed = 0;
                    for some in names.chunks(CHUNK) {
                        let some = Which::Named(some);
                        changed += self.some_dead(queue, shard, what, due, some).await?.number;
                    }
                    changed
                }
            };
            shard += 1;
        }
        Ok(changed)
    }

    async fn all_dead(
        &self,
        queue: &QueueName,
        shard: u16,
        what: &'static str,
        due: Due,
    ) -> Result<u64> {
        let (mut number, mut after) = (0, None);
        loop {
            let which = Which::After(after.as_ref());
            let changed = self.some_dead(queue, shard, what, due, which).await?;
            number += changed.number;
            if changed.next.is_none() {
                return Ok(number);
            }
            after = changed.next;
        }
    }

    async fn some_dead(
        &self,
        queue: &QueueName,
        shard: u16,
        what: &'static str,
        due: Due,
        which: Which<'_>,
    ) -> Result<Changed> {
        let mut tries = Tries::default();
        loop {
            tries.again(what)?;
            let spread = self.lanes.spread(queue);
            let changed = if what == REPLAY && spread.layout.is_mixed() {
                Box::pin(self.replay_alone(queue, shard, due, which)).await?
            } else {
                self.change_dead(spread.lane(shard), what, due, which).await?
            };
            if let Some(changed) = changed {
                return Ok(changed);
            }
        }
    }

    /// Changes some dead jobs of one shard. `None` if its layout is not the one believed in.
    pub(crate) async fn change_dead(
        &self,
        lane: &Lane,
        what: &'static str,
        due: Due,
        which: Which<'_>,
    ) -> Result<Option<Changed>> {
        let mut call = self.scripts.dead.on([lane]);
        call.arg(&lane.channel).arg(what).arg(due_text(due)).arg(CHUNK);
        which.write(&mut call);
        let Some(answer) = self.ask(what, lane, call).await? else {
            return Ok(None);
        };
        match read_dead(answer) {
            Some(changed) => Ok(Some(changed)),
            None => unexpected(what),
        }
    }

    async fn pause(&self, queue: &QueueName, pause: bool) -> Result<u64> {
        self.register(OPERATE, [queue]).await?;
        let (mut changed, mut shard) = (0, 0);
        // The first shard first: the state of others that come later is taken from it.
        while shard < self.width(queue) {
            let call = |lane: &Lane, call: &mut Call<'_>| {
                call.arg(&lane.channel).arg(u8::from(pause));
            };
            changed = changed.max(self.count(queue, shard, &self.scripts.pause, call).await?);
            shard += 1;
        }
        Ok(changed)
    }

    async fn purge(&self, queue: &QueueName) -> Result<u64> {
        let (mut removed, mut shard) = (0, 0);
        while shard < self.width(queue) {
            let call = |_: &Lane, call: &mut Call<'_>| {
                call.arg(CHUNK);
            };
            match self.count(queue, shard, &self.scripts.purge, call).await? {
                0 => shard += 1,
                some => removed += some,
            }
        }
        Ok(removed)
    }

    /// Runs a script that answers a number on one shard.
    async fn count(
        &self,
        queue: &QueueName,
        shard: u16,
        script: &crate::script::Script,
        write: impl Fn(&Lane, &mut Call<'_>),
    ) -> Result<u64> {
        let mut tries = Tries::default();
        loop {
            tries.again(OPERATE)?;
            let spread = self.lanes.spread(queue);
            let lane = spread.lane(shard);
            let mut call = script.on([&**lane]);
            write(lane, &mut call);
            let Some(answer) = self.ask(OPERATE, lane, call).await? else {
                continue;
            };
            return match number(&answer) {
                Some(number) => Ok(number),
                None => unexpected(OPERATE),
            };
        }
    }
}

fn number(answer: &Value) -> Option<u64> {
    u64::try_from(reply::number(answer)?).ok()
}

fn read_dead(answer: Value) -> Option<Changed> {
    let mut reply = Reply::new(answer)?;
    let number = u64::try_from(reply.number()?).ok()?;
    let next = if reply.is_empty() { None } else { Some((reply.number()?, reply.bytes()?)) };
    Some(Changed { number, next })
}
