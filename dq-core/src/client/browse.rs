//! Listings of a queue's jobs.

use std::future::IntoFuture;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::filter::Filter;
use super::pages::Pages;
use super::shared::ClientShared;
use crate::backend::{Backend, BrowseParams, Checked, Cursor, Order, Page};
use crate::error::Result;
use crate::model::{JobKey, JobRef, JobState, JobView, QueueName};

/// Maximum number of jobs that a filtered listing, or a search by key in one state, compares.
const MAX_COMPARED: usize = 5_000;

/// Jobs per store call.
pub(super) const PAGE: usize = 1_000;

/// A listing of jobs in one state; `.await` returns a page.
///
/// Made by [`QueueHandle::browse`](crate::QueueHandle::browse).
#[must_use = "nothing is read until this is awaited"]
#[derive(Debug)]
pub struct Browse {
    client: Arc<ClientShared>,
    queue: QueueName,
    state: JobState,
    after: Option<Cursor>,
    limit: usize,
    order: Order,
    payloads: bool,
    filter: Option<Filter>,
}

impl Browse {
    pub(super) fn new(client: &Arc<ClientShared>, queue: &QueueName, state: JobState) -> Self {
        Self {
            client: Arc::clone(client),
            queue: queue.clone(),
            state,
            after: None,
            limit: 100,
            order: Order::Ascending,
            payloads: true,
            filter: None,
        }
    }

    /// Continues after a page with the same state, order and filter; `None` starts at the first
    /// job.
    pub fn after(mut self, after: impl Into<Option<Cursor>>) -> Self {
        self.after = after.into();
        self
    }

    setters!(
        /// It is the page size: 1 to 1,000, 100 by default.
        limit: usize,
        /// By default, the earliest time comes first.
        order: Order,
        /// By default, the page includes payloads; without them the store reads less.
        payloads: bool,
    );

    /// Lists only matching jobs.
    ///
    /// One `.await` compares at most 5,000 jobs, so a page may be short or empty. The listing ends
    /// when [`Page::next`] is `None`. With payloads, each matching job costs another store call.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = Some(filter);
        self
    }

    fn params(&self) -> BrowseParams<'_> {
        BrowseParams::new(&self.queue, self.state)
            .after(self.after)
            .limit(self.limit)
            .order(self.order)
            .payloads(self.payloads)
    }

    /// Returns a page of matching jobs.
    async fn filtered(&self, filter: &Filter) -> Result<Page> {
        let store = &self.client.stores.main;
        let params = self.params().payloads(false);
        store.validate_browse(&params)?;
        let mut page = match filter.id {
            Some(_) => Page::new(find_by_id(store, &self.queue, self.state, filter).await?, None),
            None => list_matching(store, params, filter).await?,
        };
        if !self.payloads {
            page.jobs.iter_mut().for_each(|view| view.job.payload = Bytes::new());
        // A lookup by id has read the payload, and ended jobs have none.
        } else if filter.id.is_none() && self.state != JobState::Ended {
            let listed = std::mem::take(&mut page.jobs);
            for view in listed {
                let job = JobRef::new(self.queue.clone(), view.job.id);
                // The job may have changed since it was listed.
                let matches = |view: &JobView| view.state == self.state && filter.matches(view);
                page.jobs.extend(store.get(&job).await?.filter(matches));
            }
        }
        Ok(page)
    }
}

/// The result of [`QueueHandle::count`](crate::QueueHandle::count).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// Number of matching jobs.
    pub matching: u64,
    /// Whether `matching` is exact. If not, it is a lower bound.
    pub complete: bool,
}

/// Counts matching jobs, until `max_compared` jobs are compared.
pub(super) async fn count(
    client: &ClientShared,
    queue: &QueueName,
    states: &[JobState],
    filter: &Filter,
    max_compared: u64,
) -> Result<Count> {
    let (mut matching, mut compared) = (0, 0);
    for store in client.stores.iter() {
        for state in states {
            if filter.id.is_some() {
                matching += find_by_id(store, queue, *state, filter).await?.len() as u64;
                continue;
            }
            let params = BrowseParams::new(queue, *state).limit(PAGE).payloads(false);
            let mut pages = Pages::new(store, params);
            loop {
                if compared >= max_compared && pages.has_more() {
                    return Ok(Count { matching, complete: false });
                }
                let Some(page) = pages.next().await? else { break };
                matching += page.jobs.iter().filter(|view| filter.matches(view)).count() as u64;
                compared += page.jobs.len() as u64;
                if page.jobs.last().is_some_and(|last| filter.is_past(last)) {
                    break;
                }
            }
        }
    }
    Ok(Count { matching, complete: true })
}

/// Finds the dead or ended job that had the key last, in all stores.
pub(super) async fn last_with_key(
    client: &ClientShared,
    queue: &QueueName,
    key: &JobKey,
) -> Result<Option<JobView>> {
    let mut found = Vec::new();
    for store in client.stores.iter() {
        found.extend(latest_with_key(store, queue, JobState::Dead, key).await?);
        if store.capabilities().history {
            found.extend(latest_with_key(store, queue, JobState::Ended, key).await?);
        }
    }
    // Of jobs that ended at the same time, the first one found.
    Ok(found.into_iter().rev().max_by_key(|view| {
        let died_at = view.dead.as_ref().map(|(_, at)| *at);
        died_at.or(view.ended.as_ref().map(|ended| ended.at))
    }))
}

async fn latest_with_key(
    store: &Checked,
    queue: &QueueName,
    state: JobState,
    key: &JobKey,
) -> Result<Option<JobView>> {
    let params = BrowseParams::new(queue, state).order(Order::Descending).limit(PAGE);
    let mut pages = Pages::new(store, params);
    let mut compared = 0;
    while compared < MAX_COMPARED
        && let Some(page) = pages.next().await?
    {
        compared += page.jobs.len();
        let found = page.jobs.into_iter().find(|view| view.job.key.as_ref() == Some(key));
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Lists matching jobs up to the limit of `params`, and compares at most [`MAX_COMPARED`] jobs.
async fn list_matching(store: &Checked, params: BrowseParams<'_>, filter: &Filter) -> Result<Page> {
    let mut found = Vec::new();
    let (mut after, mut compared, mut page_size) = (params.after, 0, PAGE);
    loop {
        let page = store.browse(params.after(after).limit(page_size)).await?;
        let matching: Vec<usize> =
            (0..page.jobs.len()).filter(|position| filter.matches(&page.jobs[*position])).collect();
        let room = params.limit - found.len();
        if matching.len() > room {
            // Only a page end has a cursor, so list again up to the last match that fits.
            page_size = matching[room - 1] + 1;
            continue;
        }
        compared += page.jobs.len();
        let is_past = params.order == Order::Ascending
            && page.jobs.last().is_some_and(|last| filter.is_past(last));
        found.extend(page.jobs.into_iter().filter(|view| filter.matches(view)));
        let next = page.next.filter(|_| !is_past);
        if next.is_none() || found.len() == params.limit || compared >= MAX_COMPARED {
            return Ok(Page::new(found, next));
        }
        (after, page_size) = (next, PAGE);
    }
}

/// Looks up the filter's id. The job must be in this state and match.
pub(super) async fn find_by_id(
    store: &Checked,
    queue: &QueueName,
    state: JobState,
    filter: &Filter,
) -> Result<Vec<JobView>> {
    let Some(id) = filter.id else { return Ok(Vec::new()) };
    let found = store.get(&JobRef::new(queue.clone(), id)).await?;
    Ok(found.into_iter().filter(|view| view.state == state && filter.matches(view)).collect())
}

impl IntoFuture for Browse {
    type Output = Result<Page>;
    type IntoFuture = BoxFuture<'static, Result<Page>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match &self.filter {
                Some(filter) => self.filtered(filter).await,
                None => self.client.stores.main.browse(self.params()).await,
            }
        })
    }
}
