//! Reads of the replica: stats, browse, get, forecast. A barrier makes sure that they see all
//! earlier changes.

use dq_core::{
    BrowseParams, JobRef, JobState, JobView, Page, QueueName, QueueStats, Result, Timestamp,
};

use crate::engine::Engine;
use crate::error::LostReply;
use crate::log::command::Barrier;
use crate::log::{AppliedAt, PayloadRef, ReadPurpose, Replica, headers_of};
use crate::payloads::PayloadReads;

impl Engine {
    pub(crate) async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let queues = queues.to_vec();
        let read = move |replica: &mut Replica, (), at: AppliedAt| {
            replica.machine().stats(&queues, at.now)
        };
        self.log.call("stats", LostReply::Unavailable, Barrier, read).await
    }

    pub(crate) async fn browse(&self, params: &BrowseParams<'_>) -> Result<Page> {
        let BrowseParams { state, after, limit, payloads, order, .. } = *params;
        let queue = params.queue.clone();
        let read = move |replica: &mut Replica, (), at: AppliedAt| {
            let params = BrowseParams::new(&queue, state).after(after).limit(limit).order(order);
            // Always with payloads: in a replica, this field has the payload's reference and the
            // headers.
            replica.machine().browse(params.payloads(true), at.now)
        };
        let mut page = self.log.call("browse", LostReply::Unavailable, Barrier, read).await?;
        self.complete(&mut page.jobs, payloads).await?;
        Ok(page)
    }

    pub(crate) async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        let job = job.clone();
        let read =
            move |replica: &mut Replica, (), at: AppliedAt| replica.machine().get(&job, at.now);
        let mut view = self.log.call("get", LostReply::Unavailable, Barrier, read).await?;
        self.complete(view.as_mut_slice(), true).await?;
        Ok(view)
    }

    pub(crate) async fn forecast(
        &self,
        queue: &QueueName,
        edges: &[Timestamp],
    ) -> Result<Vec<u64>> {
        let (queue, edges) = (queue.clone(), edges.to_vec());
        let read = move |replica: &mut Replica, (), _| replica.machine().forecast(&queue, &edges);
        self.log.call("forecast", LostReply::Unavailable, Barrier, read).await
    }

    /// Adds headers and payloads. A payload stays empty if the job has ended, if the caller does
    /// not want it, or if the log has lost it.
    async fn complete(&self, views: &mut [JobView], payloads: bool) -> Result<()> {
        let mut reads = PayloadReads::default();
        for view in views.iter().filter(|view| payloads && view.state != JobState::Ended) {
            reads.unread.insert(view.job.id, PayloadRef::of(&view.job));
        }
        self.read_payloads(&mut reads, ReadPurpose::View).await?;
        reads.lost.iter().for_each(|id| self.log.add_lost_payload(*id));
        for JobView { job, .. } in views.iter_mut().filter(|view| view.state != JobState::Ended) {
            job.headers = headers_of(job);
            job.payload = reads.found.remove(&job.id).unwrap_or_default();
        }
        Ok(())
    }
}
