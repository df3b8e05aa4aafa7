//! Defects in views of jobs, ended jobs and runners, and in forecasts.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Announcement, Backend, BrowseParams, Headers, JobRef, JobState, JobView, Layer, Order, Page,
    QueueName, Result, Timestamp, async_trait,
};

use super::subject::Opened;

/// Defines a layer that changes the jobs from `get` and `browse`.
macro_rules! changes_views {
    ($name:ident, $change:expr) => {
        layer!($name, {
            async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
                let change: fn(&mut JobView) = $change;
                let mut view = self.inner.get(job).await?;
                view.iter_mut().for_each(change);
                Ok(view)
            }

            async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
                let change: fn(&mut JobView) = $change;
                let mut page = self.inner.browse(params).await?;
                page.jobs.iter_mut().for_each(change);
                Ok(page)
            }
        });
    };
}

changes_views!(ForgetsErrors, |view| view.last_error = None);

changes_views!(ForgetsHolders, |view| {
    view.worker = None;
    view.leased_since = None;
});

changes_views!(RemembersPayloads, |view| {
    if view.state == JobState::Ended {
        view.job.payload = Bytes::from_static(b"payload");
        view.job.headers = Headers::from_iter([("a", "b")]);
    }
});

changes_views!(ForgetsReasonsOfEnds, |view| {
    if let Some(ended) = &mut view.ended {
        ended.reason = None;
    }
});

layer!(ForgetsEndedJobs, {
    async fn get(&self, job: &JobRef) -> Result<Option<JobView>> {
        let view = self.inner.get(job).await?;
        Ok(view.filter(|view| view.state != JobState::Ended))
    }

    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        match params.state {
            JobState::Ended => Ok(Page::new(Vec::new(), None)),
            _ => self.inner.browse(params).await,
        }
    }
});

layer!(ListsAscending, {
    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.inner.browse(params.order(Order::Ascending)).await
    }
});

layer!(ListsPayloads, {
    async fn browse(&self, params: BrowseParams<'_>) -> Result<Page> {
        self.inner.browse(params.payloads(true)).await
    }
});

layer!(AnnouncesTooLong, {
    async fn announce(&self, mut announcement: Announcement) -> Result<()> {
        announcement.ttl *= 1_000;
        self.inner.announce(announcement).await
    }
});

layer!(IgnoresWithdrawals, {
    async fn announce(&self, announcement: Announcement) -> Result<()> {
        if announcement.ttl.is_zero() {
            return Ok(());
        }
        self.inner.announce(announcement).await
    }
});

// Counts a job due at an edge before the edge.
layer!(CountsEdgesBefore, {
    async fn forecast(&self, queue: &QueueName, edges: &[Timestamp]) -> Result<Vec<u64>> {
        let later = |edge: &Timestamp| *edge + Duration::from_millis(1);
        let edges: Vec<Timestamp> = edges.iter().map(later).collect();
        self.inner.forecast(queue, &edges).await
    }
});
