//! Job listings and searches across all queues.

use std::cmp::Reverse;
use std::collections::HashSet;

use dq_core::{ErrorKind, JobId, JobKey, JobState, Target, Timestamp};
use futures_util::future::join_all;

use crate::error::{OpsError, Result};
use crate::jobs::{JobQuery, JobSummary};
use crate::ops::Session;
use crate::overview::{Overview, QueueSummary};

/// A listing reads at most this many queues.
const MAX_QUEUES: usize = 50;

/// A search for one job asks at most this many queues at once.
const AT_ONCE: usize = 50;

/// About how many jobs a filtered listing compares over all queues.
const MAX_COMPARED: u64 = 20_000;

/// About how many jobs a search in payloads compares over all queues.
const MAX_SEARCHED: u64 = 2_000;

/// The states searched by key, problems first.
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
    /// jobs, otherwise the largest. It returns a single page and ignores [`JobQuery::after`].
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
                Err(error) if state == JobState::Ended && is_unsupported(&error) => {}
                Err(error) => return Err(error),
            }
        }
        jobs.sort_by_key(|job| STATES.iter().position(|state| *state == job.state));
        Ok(JobsAnywhere { jobs, complete })
    }

    /// Finds the job in every queue; by key, only a live one.
    async fn find_one(&self, overview: &Overview, target: &Target) -> Result<Vec<JobSummary>> {
        let mut found = Vec::new();
        for queues in overview.queues.chunks(AT_ONCE) {
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

fn is_unsupported(error: &OpsError) -> bool {
    matches!(error, OpsError::Store(error) if error.kind() == ErrorKind::Unsupported)
}

/// Chooses the queues to read, and returns whether these are all queues with jobs in the state.
fn choose_queues<'a>(
    overview: &'a Overview,
    query: &JobQuery,
    limit: usize,
) -> (Vec<&'a QueueSummary>, bool) {
    let count = |queue: &QueueSummary| count_of(queue, query.state);
    let mut queues: Vec<&QueueSummary> = (overview.queues.iter())
        .filter(|queue| !queue.queue.is_reserved() && count(queue) > 0)
        .collect();
    match query.state {
        JobState::Scheduled | JobState::Ready => queues.sort_by_key(|queue| queue.next_due),
        _ => queues.sort_by_key(|queue| Reverse(count(queue))),
    }
    let all_queues = queues.len();
    // In ascending order, the first ready jobs are in the queues whose first job is due first. A
    // filter or a search may skip them.
    let limit_suffices = query.state == JobState::Ready
        && query.filter.is_empty()
        && query.contains.is_none()
        && !query.descending;
    queues.truncate(if limit_suffices { limit.min(MAX_QUEUES) } else { MAX_QUEUES });
    let max_compared = match (query.contains.is_some(), query.filter.is_empty()) {
        (true, _) => MAX_SEARCHED,
        (false, false) => MAX_COMPARED,
        // The store compares nothing for a listing of all jobs.
        (false, true) => u64::MAX,
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

/// Counts a queue's jobs in a state.
///
/// The store does not count its history. For ended jobs, this is the total stored so far, or 1 if
/// that is unknown.
fn count_of(queue: &QueueSummary, state: JobState) -> u64 {
    match state {
        JobState::Scheduled => queue.scheduled,
        JobState::Ready => queue.ready,
        JobState::Running => queue.running,
        JobState::Dead => queue.dead,
        _ => queue.created_total.unwrap_or(1),
    }
}

/// The sort key of a listing; see [`Order`](dq_core::Order).
fn time_of(job: &JobSummary) -> Timestamp {
    let dead = job.dead.as_ref().map(|dead| dead.at);
    let ended = job.ended.as_ref().map(|ended| ended.at);
    dead.or(ended).or(job.leased_until).unwrap_or(job.due)
}
