//! An operator's interventions.

use dq_core::{Due, Error, ErrorKind, JobId, Operation, QueueName, Result};
use redis::Value;

use crate::batch::CHUNK;
use crate::error::unexpected;
use crate::handle;
use crate::reply::{self, Reply};
use crate::schedule::due as due_text;
use crate::store::Store;

const OPERATE: &str = "operate";

impl Store {
    /// Carries an operation out and says how many jobs (or queues) changed.
    pub(crate) async fn operate(&self, operation: Operation<'_>) -> Result<u64> {
        match operation {
            Operation::Replay { queue, jobs, due } => self.dead(queue, "replay", due, jobs).await,
            Operation::Remove { queue, jobs } => self.dead(queue, "remove", Due::NOW, jobs).await,
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

    async fn dead(
        &self,
        queue: &QueueName,
        what: &'static str,
        due: Due,
        jobs: Option<&[JobId]>,
    ) -> Result<u64> {
        let Some(jobs) = jobs else {
            return self.all_dead(queue, what, due).await;
        };
        let lane = self.lanes.of(queue);
        let mut changed = 0;
        for some in jobs.chunks(CHUNK) {
            let mut call = self.scripts.dead.on([&*lane]);
            call.arg(&lane.channel).arg(what).arg(due_text(due)).arg(CHUNK).arg("n");
            for job in some {
                call.arg(&handle::full(*job)[..]);
            }
            let answer = call.run(&self.link, what).await?;
            match read_dead(answer) {
                Some((number, _)) => changed += number,
                None => return unexpected(what),
            }
        }
        Ok(changed)
    }

    async fn all_dead(&self, queue: &QueueName, what: &'static str, due: Due) -> Result<u64> {
        let lane = self.lanes.of(queue);
        let (mut changed, mut after) = (0, None::<Place>);
        loop {
            let mut call = self.scripts.dead.on([&*lane]);
            call.arg(&lane.channel).arg(what).arg(due_text(due)).arg(CHUNK).arg("a");
            if let Some((at, handle)) = &after {
                call.arg(*at).arg(&handle[..]);
            }
            let answer = call.run(&self.link, what).await?;
            let Some((number, next)) = read_dead(answer) else {
                return unexpected(what);
            };
            changed += number;
            if next.is_none() {
                return Ok(changed);
            }
            after = next;
        }
    }

    async fn pause(&self, queue: &QueueName, pause: bool) -> Result<u64> {
        self.register(OPERATE, [queue]).await?;
        let lane = self.lanes.of(queue);
        let mut call = self.scripts.pause.on([&*lane]);
        call.arg(&lane.channel).arg(u8::from(pause));
        self.count(call.run(&self.link, OPERATE).await?)
    }

    async fn purge(&self, queue: &QueueName) -> Result<u64> {
        let lane = self.lanes.of(queue);
        let mut removed = 0;
        loop {
            let mut call = self.scripts.purge.on([&*lane]);
            call.arg(CHUNK);
            match self.count(call.run(&self.link, OPERATE).await?)? {
                0 => return Ok(removed),
                some => removed += some,
            }
        }
    }

    fn count(&self, answer: Value) -> Result<u64> {
        match reply::number(&answer).and_then(|number| u64::try_from(number).ok()) {
            Some(number) => Ok(number),
            None => unexpected(OPERATE),
        }
    }
}

type Place = (i64, bytes::Bytes);

fn read_dead(answer: Value) -> Option<(u64, Option<Place>)> {
    let mut reply = Reply::new(answer)?;
    let changed = u64::try_from(reply.number()?).ok()?;
    if reply.is_empty() {
        return Some((changed, None));
    }
    Some((changed, Some((reply.number()?, reply.bytes()?))))
}
