//! Stats, browse and get: the state after a look at the log, with the payloads that are in it.

use dq_core::{BrowseParams, Job, JobRef, JobState, JobView, Page, QueueName, QueueStats, Result};

use crate::desk::Desk;
use crate::error::Effect;
use crate::log::command::Barrier;
use crate::log::{AppliedAt, LogPosition, Replica};

impl Desk {
    pub(crate) async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let queues = queues.to_vec();
        let read = move |replica: &mut Replica, (), at: AppliedAt| {
            replica.machine().stats(&queues, at.now)
        };
        self.log.call("stats", Effect::None, Barrier, read).await
    }

    pub(crate) async fn browse(&self, params: &BrowseParams<'_>) -> Result<Page> {
        let mut page = self.list(params).await?;
        self.fill_in(page.jobs.iter_mut().map(|view| &mut view.job).collect()).await?;
        Ok(page)
    }

    pub(crate) async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        let job = job.clone();
        let read =
            move |replica: &mut Replica, (), at: AppliedAt| replica.machine().get(&job, at.now);
        let mut view = self.log.call("get", Effect::None, Barrier, read).await?;
        self.fill_in(view.iter_mut().map(|view| &mut view.job).collect()).await?;
        Ok(view)
    }

    /// A page without payloads.
    pub(crate) async fn list(&self, params: &BrowseParams<'_>) -> Result<Page> {
        let (queue, state, after, limit) =
            (params.queue.clone(), params.state, params.after, params.limit);
        let read = move |replica: &mut Replica, (), at: AppliedAt| {
            let params = BrowseParams { queue: &queue, state, after, limit };
            replica.machine().browse(params, at.now)
        };
        self.log.call("browse", Effect::None, Barrier, read).await
    }

    /// All dead jobs of a queue, without payloads.
    pub(crate) async fn dead(&self, queue: &QueueName) -> Result<Vec<Job>> {
        let mut dead = Vec::new();
        let mut after = None;
        loop {
            let params = BrowseParams { queue, state: JobState::Dead, after, limit: 1_000 };
            let page = self.list(&params).await?;
            dead.extend(page.jobs.into_iter().map(|view| view.job));
            after = page.next;
            if after.is_none() {
                return Ok(dead);
            }
        }
    }

    /// Reads payloads and headers of jobs of the replica.
    async fn fill_in(&self, jobs: Vec<&mut Job>) -> Result<()> {
        let mut found =
            self.log.fetch(jobs.iter().map(|job| LogPosition::of(job)).collect()).await?;
        for job in jobs {
            // What is not there any more is shown empty: the job itself is still to be seen.
            let place = LogPosition::of(job);
            (job.payload, job.headers) = found.remove(&place).unwrap_or_default();
        }
        Ok(())
    }
}
