//! A filter of listed jobs.

use std::ops::{Bound, RangeBounds};

use crate::model::{JobId, JobState, JobView, Timestamp};

/// Which jobs of a listing to take; jobs must match all parts that are set. `Filter::new()` matches
/// every job.
///
/// The client compares the jobs, page by page: the work grows with the number of jobs in the listing
/// and not with that of matches. An [`id`](Self::id) is looked up directly.
///
/// ```
/// # use dq_core::{DurationExt, Filter, Timestamp};
/// # let noon = Timestamp::EPOCH;
/// let filter = Filter::new().key_prefix("order-").due(noon..noon + 1.hours());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use = "a filter does nothing until it is used"]
pub struct Filter {
    key_prefix: Option<String>,
    pub(super) id: Option<JobId>,
    due: Option<(Bound<Timestamp>, Bound<Timestamp>)>,
    error: Option<String>,
}

impl Filter {
    /// A filter that every job matches.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes only jobs whose key begins with this text.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = Some(prefix.into());
        self
    }

    /// Takes only the job with this id.
    pub fn id(mut self, id: JobId) -> Self {
        self.id = Some(id);
        self
    }

    /// Takes only jobs whose due time is in this range.
    pub fn due(mut self, due: impl RangeBounds<Timestamp>) -> Self {
        self.due = Some((due.start_bound().cloned(), due.end_bound().cloned()));
        self
    }

    /// Takes only jobs whose last error, reason of death or reason of their end contains this text.
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.error = Some(text.into());
        self
    }

    /// Whether a job matches.
    #[must_use]
    pub fn matches(&self, view: &JobView) -> bool {
        let JobView { job, .. } = view;
        let has_prefix =
            |prefix: &String| job.key.as_ref().is_some_and(|key| key.as_str().starts_with(prefix));
        self.id.is_none_or(|id| id == job.id)
            && self.key_prefix.as_ref().is_none_or(has_prefix)
            && self.due.is_none_or(|due| due.contains(&job.due))
            && self.error.as_ref().is_none_or(|text| texts(view).any(|found| found.contains(text)))
    }

    /// Whether no job after this one can match, in a listing in ascending order.
    pub(super) fn is_past(&self, view: &JobView) -> bool {
        let by_due = matches!(view.state, JobState::Scheduled | JobState::Ready);
        by_due
            && match self.due {
                Some((_, Bound::Included(end))) => view.job.due > end,
                Some((_, Bound::Excluded(end))) => view.job.due >= end,
                Some((_, Bound::Unbounded)) | None => false,
            }
    }
}

/// The errors and reasons of a job.
fn texts(view: &JobView) -> impl Iterator<Item = &str> {
    let dead = view.dead.as_ref().map(|(reason, _)| reason.message.as_str());
    let ended = view.ended.as_ref().and_then(|ended| ended.reason.as_deref());
    view.last_error.as_deref().into_iter().chain(dead).chain(ended)
}
