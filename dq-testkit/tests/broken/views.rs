//! More layers with a defect.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Announcement, Backend, BrowseParams, Headers, JobRef, JobState, JobView, Layer, Order, Page,
    QueueName, Result, Timestamp, async_trait,
};

/// Changes the jobs from `get` and `browse`.
macro_rules! view_layer {
    ($(#[$doc:meta])* $name:ident, $change:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name(pub(crate) Arc<dyn Backend>);

        layer!($name, 0, {
            async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
                let change: fn(&mut JobView) = $change;
                let mut view = self.0.get(job).await?;
                view.iter_mut().for_each(change);
                Ok(view)
            }

            async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
                let change: fn(&mut JobView) = $change;
                let mut page = self.0.browse(params).await?;
                page.jobs.iter_mut().for_each(change);
                Ok(page)
            }
        });
    };
}

view_layer!(ForgetsErrors, |view| view.last_error = None);

view_layer!(ForgetsHolders, |view| {
    view.worker = None;
    view.leased_since = None;
});

view_layer!(RemembersPayloads, |view| {
    if view.state == JobState::Ended {
        view.job.payload = Bytes::from_static(b"payload");
        view.job.headers = Headers::from_iter([("a", "b")]);
    }
});

view_layer!(ForgetsReasonsOfEnds, |view| {
    if let Some(ended) = &mut view.ended {
        ended.reason = None;
    }
});

#[derive(Debug)]
pub(crate) struct ForgetsEndedJobs(pub(crate) Arc<dyn Backend>);

layer!(ForgetsEndedJobs, 0, {
    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        let view = self.0.get(job).await?;
        Ok(view.filter(|view| view.state != JobState::Ended))
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        match params.state {
            JobState::Ended => Ok(Page::new(Vec::new(), None)),
            _ => self.0.browse(params).await,
        }
    }
});

#[derive(Debug)]
pub(crate) struct ListsAscending(pub(crate) Arc<dyn Backend>);

layer!(ListsAscending, 0, {
    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.0.browse(params.order(Order::Ascending)).await
    }
});

#[derive(Debug)]
pub(crate) struct ListsPayloads(pub(crate) Arc<dyn Backend>);

layer!(ListsPayloads, 0, {
    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.0.browse(params.payloads(true)).await
    }
});

/// A thousand times longer than asked.
#[derive(Debug)]
pub(crate) struct AnnouncesTooLong(pub(crate) Arc<dyn Backend>);

layer!(AnnouncesTooLong, 0, {
    async fn announce(&self, mut announcement: Announcement) -> Result<()> {
        announcement.ttl *= 1_000;
        self.0.announce(announcement).await
    }
});

#[derive(Debug)]
pub(crate) struct IgnoresWithdrawals(pub(crate) Arc<dyn Backend>);

layer!(IgnoresWithdrawals, 0, {
    async fn announce(&self, announcement: Announcement) -> Result<()> {
        if announcement.ttl.is_zero() {
            return Ok(());
        }
        self.0.announce(announcement).await
    }
});

/// Counts a job due at an edge before the edge.
#[derive(Debug)]
pub(crate) struct CountsEdgesBefore(pub(crate) Arc<dyn Backend>);

layer!(CountsEdgesBefore, 0, {
    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        let later = |edge: &Timestamp| *edge + Duration::from_millis(1);
        let edges: Vec<Timestamp> = edges.iter().map(later).collect();
        self.0.forecast(queue, &edges).await
    }
});
