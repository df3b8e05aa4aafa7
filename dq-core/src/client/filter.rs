//! A filter for listed jobs.

use std::ops::{Bound, RangeBounds};

use crate::model::{JobId, JobState, JobView, Timestamp};

/// Conditions for listed jobs; all that you set must match.
///
/// The client compares the listing's jobs page by page, but looks up an [`id`](Self::id) directly.
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
    /// Creates a filter that matches every job.
    pub fn new() -> Self {
        Self::default()
    }

    /// Matches jobs whose key starts with this text.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = Some(prefix.into());
        self
    }

    /// Matches the job with this id.
    pub fn id(mut self, id: JobId) -> Self {
        self.id = Some(id);
        self
    }

    /// Matches jobs with a due time in this range.
    pub fn due(mut self, due: impl RangeBounds<Timestamp>) -> Self {
        self.due = Some((due.start_bound().cloned(), due.end_bound().cloned()));
        self
    }

    /// Matches jobs with this text in their last error, or the reason for their death or end.
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.error = Some(text.into());
        self
    }

    /// Returns whether a job matches.
    pub fn matches(&self, view: &JobView) -> bool {
        let JobView { job, .. } = view;
        let has_prefix =
            |prefix: &String| job.key.as_ref().is_some_and(|key| key.as_str().starts_with(prefix));
        self.id.is_none_or(|id| id == job.id)
            && self.key_prefix.as_ref().is_none_or(has_prefix)
            && self.due.is_none_or(|due| due.contains(&job.due))
            && self.error.as_ref().is_none_or(|text| texts(view).any(|found| found.contains(text)))
    }

    /// Returns whether no later job of an ascending listing can match.
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

/// Returns the texts that [`Filter::error`] searches.
fn texts(view: &JobView) -> impl Iterator<Item = &str> {
    let dead = view.dead.as_ref().map(|(reason, _)| reason.message.as_str());
    let ended = view.ended.as_ref().and_then(|ended| ended.reason.as_deref());
    view.last_error.as_deref().into_iter().chain(dead).chain(ended)
}
