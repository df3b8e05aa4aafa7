//! Stats, browse and get: read the replica after a barrier, so that they see all earlier changes,
//! and fetch payloads from the log.

use dq_core::{BrowseParams, Job, JobRef, JobState, JobView, Page, QueueName, QueueStats, Result};

use crate::engine::Engine;
use crate::error::LostReply;
use crate::log::command::Barrier;
use crate::log::{AppliedAt, LogPosition, Replica};

impl Engine {
    pub(crate) async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let queues = queues.to_vec();
        let read = move |replica: &mut Replica, (), at: AppliedAt| {
            replica.machine().stats(&queues, at.now)
        };
        self.log.call("stats", LostReply::Unavailable, Barrier, read).await
    }

    pub(crate) async fn browse(&self, params: &BrowseParams<'_>) -> Result<Page> {
        let mut page = self.browse_without_payloads(params).await?;
        self.add_payloads(page.jobs.iter_mut().map(|view| &mut view.job).collect()).await?;
        Ok(page)
    }

    pub(crate) async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        let job = job.clone();
        let read =
            move |replica: &mut Replica, (), at: AppliedAt| replica.machine().get(&job, at.now);
        let mut view = self.log.call("get", LostReply::Unavailable, Barrier, read).await?;
        self.add_payloads(view.iter_mut().map(|view| &mut view.job).collect()).await?;
        Ok(view)
    }

    async fn browse_without_payloads(&self, params: &BrowseParams<'_>) -> Result<Page> {
        let (queue, state, after, limit) =
            (params.queue.clone(), params.state, params.after, params.limit);
        let read = move |replica: &mut Replica, (), at: AppliedAt| {
            let params = BrowseParams { queue: &queue, state, after, limit };
            replica.machine().browse(params, at.now)
        };
        self.log.call("browse", LostReply::Unavailable, Barrier, read).await
    }

    /// All dead jobs of a queue, without payloads.
    pub(crate) async fn dead_jobs(&self, queue: &QueueName) -> Result<Vec<Job>> {
        let mut dead = Vec::new();
        let mut after = None;
        loop {
            let params = BrowseParams { queue, state: JobState::Dead, after, limit: 1_000 };
            let page = self.browse_without_payloads(&params).await?;
            dead.extend(page.jobs.into_iter().map(|view| view.job));
            after = page.next;
            if after.is_none() {
                return Ok(dead);
            }
        }
    }

    /// Reads payloads and headers from the log. They stay empty if they are not in the log any
    /// more.
    async fn add_payloads(&self, jobs: Vec<&mut Job>) -> Result<()> {
        let mut payloads =
            self.log.fetch(jobs.iter().map(|job| LogPosition::of(job)).collect()).await?;
        for job in jobs {
            (job.payload, job.headers) = payloads.remove(&LogPosition::of(job)).unwrap_or_default();
        }
        Ok(())
    }
}
