//! Reads the replica: stats, browse, get, forecast. A barrier makes sure that they see all earlier
//! changes.

use std::collections::HashMap;

use dq_core::{
    BrowseParams, JobId, JobRef, JobState, JobView, Page, QueueName, QueueStats, Result, Timestamp,
};

use crate::engine::Engine;
use crate::error::LostReply;
use crate::log::wire::Command;
use crate::log::{AppliedAt, ReadPurpose, Replica, StoredPayload};
use crate::payloads::PayloadReads;

impl Engine {
    pub(crate) async fn stats(&self, queues: &[QueueName]) -> Result<Vec<QueueStats>> {
        let queues = queues.to_vec();
        let read = move |replica: &mut Replica, (), at: AppliedAt| {
            replica.machine().stats(&queues, at.now)
        };
        self.log.call("stats", LostReply::Unavailable, Command::Barrier, read).await
    }

    pub(crate) async fn browse(&self, params: &BrowseParams<'_>) -> Result<Page> {
        let BrowseParams { state, after, limit, payloads, order, .. } = *params;
        let queue = params.queue.clone();
        let read = move |replica: &mut Replica, (), at: AppliedAt| {
            let params = BrowseParams::new(&queue, state).after(after).limit(limit).order(order);
            let page = replica.machine().browse(params, at.now);
            let stored = stored(replica, &page.jobs);
            (page, stored)
        };
        let browsed = self.log.call("browse", LostReply::Unavailable, Command::Barrier, read).await;
        let (mut page, stored) = browsed?;
        self.complete(&mut page.jobs, stored, payloads).await?;
        Ok(page)
    }

    pub(crate) async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        let job = job.clone();
        let read = move |replica: &mut Replica, (), at: AppliedAt| {
            let view = replica.machine().get(&job, at.now);
            let stored = stored(replica, view.as_slice());
            (view, stored)
        };
        let (mut view, stored) =
            self.log.call("get", LostReply::Unavailable, Command::Barrier, read).await?;
        self.complete(view.as_mut_slice(), stored, true).await?;
        Ok(view)
    }

    pub(crate) async fn forecast(
        &self,
        queue: &QueueName,
        edges: &[Timestamp],
    ) -> Result<Vec<u64>> {
        let (queue, edges) = (queue.clone(), edges.to_vec());
        let read = move |replica: &mut Replica, (), _| replica.machine().forecast(&queue, &edges);
        self.log.call("forecast", LostReply::Unavailable, Command::Barrier, read).await
    }

    /// Adds headers, and payloads if the caller wants them. A payload stays empty if the job has
    /// ended, or if the log has lost it.
    async fn complete(
        &self,
        views: &mut [JobView],
        stored: HashMap<JobId, StoredPayload>,
        wants_payloads: bool,
    ) -> Result<()> {
        let mut reads = PayloadReads::default();
        if wants_payloads {
            reads.unread = stored.iter().map(|(id, stored)| (*id, stored.payload)).collect();
        }
        self.read_payloads(&mut reads, ReadPurpose::View).await?;
        reads.lost.iter().for_each(|id| self.log.add_lost_payload(*id));
        for JobView { job, .. } in views {
            if let Some(stored) = stored.get(&job.id) {
                job.headers = stored.headers();
            }
            job.payload = reads.found.remove(&job.id).unwrap_or_default();
        }
        Ok(())
    }
}

/// Returns stored payloads and headers. An ended job has neither, and a live one may have its id.
fn stored(replica: &mut Replica, views: &[JobView]) -> HashMap<JobId, StoredPayload> {
    let machine = replica.machine();
    let live = views.iter().filter(|view| view.state != JobState::Ended);
    live.filter_map(|view| Some((view.job.id, machine.stored(view.job.id)?.clone()))).collect()
}
