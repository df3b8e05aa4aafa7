//! Pinned ids in sharded queues. A *pinned* id belongs to an ended job and is not stored again for
//! a while.
//!
//! A pin is in its job's shard, where the schedule script looks for it. But a job with the same id
//! and another key belongs to another shard. So scheduling asks all shards of a queue that ever had
//! a job with an id to pin. A mark in the unsharded partition, set before the first such job,
//! identifies the queue.
//!
//! The mark is read once a second, and asking for pins and storing jobs are two calls. So if a job
//! ends meanwhile, its id can be stored again with another key.

use std::collections::HashMap;
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{JobId, NewJob, QueueName, Receipt, Result};

use crate::batch::CHUNK;
use crate::handle;
use crate::reply::{self, Reply};
use crate::store::RedisBackend;

const RECHECK: Duration = Duration::from_secs(1);

impl RedisBackend {
    pub(crate) async fn find_pinned(&self, jobs: &[NewJob]) -> Result<HashMap<JobId, Receipt>> {
        let mut by_queue: HashMap<&QueueName, Vec<&NewJob>> = HashMap::new();
        for job in jobs {
            by_queue.entry(&job.queue).or_default().push(job);
        }
        let mut found = HashMap::new();
        for (queue, jobs) in by_queue {
            let partitions = self.partitions_of(queue).await?;
            if partitions.is_single() {
                continue;
            }
            let adds_pins = jobs.iter().any(|job| !job.remember.is_zero());
            if !self.is_marked(queue, adds_pins).await? {
                continue;
            }
            for partition in &partitions.all {
                for chunk in jobs.chunks(CHUNK) {
                    let mut call = self.scripts.pins.on([&**partition]);
                    call.arg("find");
                    for job in chunk {
                        call.arg(&handle::handle_and_tail(job.id)[..]);
                    }
                    let mut reply = Reply::new(call.run(&self.link).await?)?;
                    for job in chunk {
                        if let Some(due) = reply.time_or_nil()? {
                            found.insert(job.id, Receipt { id: job.id, due });
                        }
                    }
                }
            }
        }
        Ok(found)
    }

    /// Whether a queue ever had a job with an id to pin; with `adds_pins`, marks it.
    async fn is_marked(&self, queue: &QueueName, adds_pins: bool) -> Result<bool> {
        let now = self.link.clock().elapsed();
        match lock(&self.marked_queues).get(queue) {
            Some(None) => return Ok(true),
            Some(Some(checked)) if !adds_pins && now < *checked + RECHECK => return Ok(false),
            _ => {}
        }
        let partition = self.partitions.unsharded(queue);
        let mut call = self.scripts.pins.on([&*partition]);
        call.arg(if adds_pins { "mark" } else { "is_marked" });
        let is_marked = reply::number(&call.run(&self.link).await?)? == 1;
        lock(&self.marked_queues).insert(queue.clone(), (!is_marked).then_some(now));
        Ok(is_marked)
    }
}
