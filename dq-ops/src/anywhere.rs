//! Job listings and searches across all queues.

use std::cmp::Reverse;
use std::collections::HashSet;

use dq_core::{ErrorKind, JobId, JobKey, JobState, Target, Timestamp};
use futures_util::future::join_all;

use crate::error::{OpsError, Result};
use crate::jobs::{JobQuery, JobSummary};
use crate::ops::Session;
use crate::overview::{Overview, QueueSummary};

/// Queues that a listing reads at most, and queues that a search for one job asks at once.
const MAX_QUEUES: usize = 50;

/// About how many jobs a filtered listing compares over all queues.
const MAX_COMPARED: u64 = 20_000;

/// About how many jobs a search in payloads compares over all queues.
const MAX_SEARCHED: u64 = 2_000;

const STATES: [JobState; 5] =
    [JobState::Dead, JobState::Ready, JobState::Running, JobState::Scheduled, JobState::Ended];

/// Jobs of several queues.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobsAnywhere {
    /// The jobs, in order.
    pub jobs: Vec<JobSummary>,
    /// Whether these are all. If not, list single queues to see the rest.
    pub complete: bool,
}

impl Session {
    /// Lists the jobs in one state across the queues of `overview`, ordered by time.
    ///
    /// Skips the framework's own queues and reads at most 50 others: the earliest due for waiting
    /// jobs, otherwise the largest. Returns a single page and ignores [`JobQuery::after`].
    pub async fn jobs_anywhere(
        &self,
        overview: &Overview,
        query: &JobQuery,
    ) -> Result<JobsAnywhere> {
        let query = JobQuery { after: None, ..query.clone() };
        let limit = query.limit.clamp(1, JobQuery::MAX_LIMIT);
        let (queues, mut complete) = choose_queues(overview, &query, limit);
        let listings = queues.iter().map(|queue| self.list(&queue.queue, &query));
        let mut jobs = Vec::new();
        for listing in join_all(listings).await {
            let (listed, next) = listing?;
            jobs.extend(listed);
            complete &= next.is_none();
        }
        match query.descending {
            true => jobs.sort_by_key(|job| Reverse(time_of(job))),
            false => jobs.sort_by_key(time_of),
        }
        complete &= jobs.len() <= limit;
        jobs.truncate(limit);
        Ok(JobsAnywhere { jobs, complete })
    }

    /// Finds jobs in any queue and state by id, key or key prefix.
    ///
    /// Dead jobs come first, then ready, running, scheduled and ended ones. An id, or a live job's
    /// whole key, is found in every queue; other searches compare a limited number of keys.
    ///
    /// # Errors
    /// `InvalidInput` for an empty or too long text; `Unsupported` if the store cannot read or list
    /// jobs; `Unavailable`.
    pub async fn find(&self, overview: &Overview, text: &str) -> Result<JobsAnywhere> {
        let text = text.trim();
        if let Ok(id) = text.parse::<JobId>() {
            let jobs = self.find_one(overview, &Target::Id(id)).await?;
            return Ok(JobsAnywhere { jobs, complete: true });
        }
        let mut jobs = match JobKey::new(text) {
            Ok(key) => self.find_one(overview, &Target::Key(key)).await?,
            Err(_) => Vec::new(),
        };
        let mut complete = true;
        let mut known: HashSet<JobId> = jobs.iter().map(|job| job.id).collect();
        for state in STATES {
            let mut query = JobQuery::new(state);
            query.filter.key_prefix = Some(text.to_owned());
            query.descending = matches!(state, JobState::Dead | JobState::Ended);
            match self.jobs_anywhere(overview, &query).await {
                Ok(found) => {
                    complete &= found.complete;
                    jobs.extend(found.jobs.into_iter().filter(|job| known.insert(job.id)));
                }
                // Some stores have no history.
                Err(error)
                    if state == JobState::Ended
                        && error.store_kind() == Some(ErrorKind::Unsupported) => {}
                Err(error) => return Err(error),
            }
        }
        jobs.sort_by_key(|job| STATES.iter().position(|state| *state == job.state));
        Ok(JobsAnywhere { jobs, complete })
    }

    /// Looks the job up in every queue; by key, only a live one.
    async fn find_one(&self, overview: &Overview, target: &Target) -> Result<Vec<JobSummary>> {
        let mut found = Vec::new();
        for queues in overview.queues.chunks(MAX_QUEUES) {
            let views = queues.iter().map(async |queue| {
                Ok::<_, OpsError>(self.ops.dq().queue(&queue.queue)?.get(target).await?)
            });
            for view in join_all(views).await {
                found.extend(view?.map(|view| self.summary(&view)));
            }
        }
        Ok(found)
    }
}

/// Chooses the queues to read; returns whether these are all queues with jobs in the state.
fn choose_queues<'a>(
    overview: &'a Overview,
    query: &JobQuery,
    limit: usize,
) -> (Vec<&'a QueueSummary>, bool) {
    // Stores do not count ended jobs, so all jobs stored so far stand for them.
    let count =
        |queue: &QueueSummary| queue.count(query.state).or(queue.created_total).unwrap_or(1);
    let mut queues: Vec<&QueueSummary> = (overview.queues.iter())
        .filter(|queue| !queue.queue.is_reserved() && count(queue) > 0)
        .collect();
    let all_queues = queues.len();
    match query.state {
        JobState::Scheduled | JobState::Ready => queues.sort_by_key(|queue| queue.next_due),
        _ => queues.sort_by_key(|queue| Reverse(count(queue))),
    }
    let selects_all = query.filter.is_empty() && query.contains.is_none();
    // In ascending order, the first ready jobs are in the queues with the earliest due job.
    let first_queues_suffice = query.state == JobState::Ready && selects_all && !query.descending;
    queues.truncate(if first_queues_suffice { limit.min(MAX_QUEUES) } else { MAX_QUEUES });
    let max_compared = match query.contains {
        // The store compares nothing for a listing of all jobs.
        None if selects_all => u64::MAX,
        None => MAX_COMPARED,
        Some(_) => MAX_SEARCHED,
    };
    let mut compared = 0_u64;
    queues.retain(|queue| {
        let fits = compared < max_compared;
        compared = compared.saturating_add(count(queue).min(MAX_COMPARED));
        fits
    });
    let are_all = queues.len() == all_queues;
    (queues, are_all)
}

/// Returns the sort key of a listing; see [`Order`](dq_core::Order).
fn time_of(job: &JobSummary) -> Timestamp {
    let dead = job.dead.as_ref().map(|dead| dead.at);
    let ended = job.ended.as_ref().map(|ended| ended.at);
    dead.or(ended).or(job.leased_until).unwrap_or(job.due)
}
