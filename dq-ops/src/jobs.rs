//! Jobs for operators: listings of one queue, searches in payloads, single jobs.

use std::collections::BTreeMap;

use dq_core::{
    Cursor, DeadKind, Ending, Error, Headers, JobId, JobState, JobView, Order, QueueHandle,
    QueueName, Target, Timestamp,
};
use memchr::memmem::Finder;
use serde::{Deserialize, Serialize};

use crate::actor::Role;
use crate::cursor;
use crate::error::{OpsError, Result};
use crate::filter::{JobFilter, check_text};
use crate::openapi;
use crate::ops::Session;
use crate::payload::PayloadView;
use crate::redact::JobContent;
use crate::text;

/// A search ends after about this many jobs.
const MAX_JOBS_COMPARED: usize = 2_000;

/// Jobs that a search reads at once. They are few, because a payload may have 1 MiB.
const SEARCH_PAGE: usize = 50;

const MAX_SEARCH_TEXT: usize = 1_024;

/// A query for one page of a queue's jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobQuery {
    /// The state to list.
    pub state: JobState,
    /// Further conditions.
    pub filter: JobFilter,
    /// Only jobs with this text in their payload, up to 1,024 bytes; needs the role reader.
    pub contains: Option<String>,
    /// The previous page's [`JobPage::next`].
    pub after: Option<String>,
    /// Page size, clamped to 1 to [`Self::MAX_LIMIT`].
    pub limit: usize,
    /// Latest time first.
    pub descending: bool,
}

impl JobQuery {
    /// The largest [`Self::limit`].
    pub const MAX_LIMIT: usize = 500;

    /// Lists the first 50 jobs in a state.
    #[must_use]
    pub fn new(state: JobState) -> Self {
        let filter = JobFilter::default();
        Self { state, filter, contains: None, after: None, limit: 50, descending: false }
    }

    fn order(&self) -> Order {
        if self.descending { Order::Descending } else { Order::Ascending }
    }
}

/// A page of jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct JobPage {
    /// The time by the store's clock.
    #[serde(with = "text")]
    pub at: Timestamp,
    /// The jobs in order. A search page may be short or empty and still have a `next`.
    pub jobs: Vec<JobSummary>,
    /// The cursor for the next page; `None` on the last page.
    pub next: Option<String>,
}

/// A job without payload and headers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct JobSummary {
    /// The job id.
    #[schema(value_type = String, format = "uuid")]
    pub id: JobId,
    /// The queue.
    #[schema(value_type = openapi::QueueName)]
    pub queue: QueueName,
    /// The key.
    pub key: Option<String>,
    /// The group; `None` also for an ended job.
    #[serde(default)]
    pub group: Option<String>,
    /// The state.
    #[schema(value_type = openapi::JobState)]
    pub state: JobState,
    /// The due time.
    #[serde(with = "text")]
    pub due: Timestamp,
    /// The first due time, before retries and snoozes.
    #[serde(with = "text")]
    pub first_due: Timestamp,
    /// When the store accepted the job.
    #[serde(with = "text")]
    pub created: Timestamp,
    /// Failed attempts.
    pub attempts: u32,
    /// Attempt limit; `None` if the queue's setting applies.
    pub max_attempts: Option<u32>,
    /// Claim count, except claims given back before the handler started.
    pub deliveries: u32,
    /// Consecutive claims that ended without a result, for example by a crash.
    pub losses: u32,
    /// When the current claim, or an ended job's last claim, was made. `None` while the job waits
    /// or is dead, or if the store does not keep it.
    #[serde(with = "text::option")]
    pub claimed_at: Option<Timestamp>,
    /// When the lease expires; `None` unless the job is running.
    #[serde(with = "text::option")]
    pub leased_until: Option<Timestamp>,
    /// The runner that holds the lease, or held an ended job's last lease. `WORKER@SERVER` for a
    /// running job of a worker that claims through `dq serve`.
    pub worker: Option<String>,
    /// The error of the last failed run that led to a retry.
    pub last_error: Option<String>,
    /// The attempt, from 1, that failed with `last_error`. A fatal attempt's error is in `dead`
    /// instead.
    #[serde(default)]
    pub last_error_attempt: Option<u32>,
    /// Why and since when the job is dead.
    pub dead: Option<DeadView>,
    /// How and when the job ended.
    pub ended: Option<EndedView>,
}

/// Why and since when a job is dead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct DeadView {
    /// Why the job is dead.
    #[schema(value_type = openapi::DeadKind)]
    pub kind: DeadKind,
    /// The reason in words.
    pub message: String,
    /// When the job died.
    #[serde(with = "text")]
    pub at: Timestamp,
}

/// How and when a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct EndedView {
    /// How it ended.
    #[schema(value_type = openapi::Ending)]
    pub ending: Ending,
    /// The reason, if there is one.
    pub reason: Option<String>,
    /// When it ended.
    #[serde(with = "text")]
    pub at: Timestamp,
}

/// A job with payload and headers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[non_exhaustive]
pub struct JobDetail {
    /// The job.
    #[serde(flatten)]
    pub job: JobSummary,
    /// The headers; `None` for a viewer.
    pub headers: Option<BTreeMap<String, String>>,
    /// The payload; `None` for a viewer and for an ended job.
    pub payload: Option<PayloadView>,
}

impl JobSummary {
    fn new(view: &JobView, content: &JobContent) -> Self {
        let job = &view.job;
        let reason = || content.reason.clone().unwrap_or_default();
        Self {
            id: job.id,
            queue: job.queue.clone(),
            key: job.key.as_ref().map(|key| key.as_str().to_owned()),
            group: job.group().map(str::to_owned),
            state: view.state,
            due: job.due,
            first_due: job.first_due,
            created: job.created,
            attempts: job.attempts,
            max_attempts: job.max_attempts,
            deliveries: job.deliveries,
            losses: job.losses,
            claimed_at: view.leased_since,
            leased_until: view.leased_until,
            worker: view.worker.clone(),
            last_error: content.last_error.clone(),
            last_error_attempt: view.last_error_attempt(),
            dead: view.dead.as_ref().map(|(dead, at)| DeadView {
                kind: dead.kind,
                message: reason(),
                at: *at,
            }),
            ended: view.ended.as_ref().map(|ended| EndedView {
                ending: ended.ending,
                reason: content.reason.clone(),
                at: ended.at,
            }),
        }
    }
}

impl Session {
    /// Lists one page of a queue's jobs.
    ///
    /// # Errors
    /// `Forbidden` if a viewer searches payloads; `InvalidInput` for an empty or too long text or a
    /// text that is no cursor; `Conflict` for a cursor from another listing; `Unsupported` if the
    /// store cannot list jobs or has no history; `Unavailable`.
    pub async fn jobs(&self, queue: &QueueName, query: &JobQuery) -> Result<JobPage> {
        let (jobs, next) = self.list(queue, query).await?;
        Ok(JobPage { at: self.now().await?, jobs, next })
    }

    pub(crate) async fn list(
        &self,
        queue: &QueueName,
        query: &JobQuery,
    ) -> Result<(Vec<JobSummary>, Option<String>)> {
        let handle = self.ops.dq().queue(queue)?;
        let after = query.after.as_deref().filter(|after| !after.is_empty());
        let after = after.map(|after| cursor::decode(query.state, query.order(), after));
        let after = after.transpose()?;
        let limit = query.limit.clamp(1, JobQuery::MAX_LIMIT);
        if let Some(text) = &query.contains {
            // A viewer could learn a payload by searching for its text.
            self.require(Role::Reader)?;
            check_text("contains", text, MAX_SEARCH_TEXT)?;
        }
        let filter = query.filter.to_core()?;
        // The client's filter would match stored errors and so reveal redacted text.
        let hides_errors = query.filter.error.is_some() && self.redaction().is_some();
        let (jobs, next) = if query.contains.is_some() || hides_errors {
            self.search(&handle, query, after, limit).await?
        } else {
            let mut browse = handle.browse(query.state).payloads(false);
            if !query.filter.is_empty() {
                browse = browse.filter(filter);
            }
            let page = browse.order(query.order()).after(after).limit(limit).await?;
            let summaries = page.jobs.iter().map(|view| self.summary(view)).collect();
            (summaries, page.next)
        };
        let next = next.map(|next| cursor::encode(query.state, query.order(), next));
        Ok((jobs, next))
    }

    /// Searches payloads and errors after redaction.
    async fn search(
        &self,
        handle: &QueueHandle,
        query: &JobQuery,
        mut after: Option<Cursor>,
        limit: usize,
    ) -> Result<(Vec<JobSummary>, Option<Cursor>)> {
        let without_error = JobFilter { error: None, ..query.filter.clone() }.to_core()?;
        let with_payload = query.contains.is_some();
        let text = query.contains.as_ref().map(Finder::new);
        let summary_if_matching = |view: &JobView| {
            if !without_error.matches(view) {
                return None;
            }
            let content = self.redaction().apply(view, with_payload);
            let has_error = query.filter.error.as_ref().is_none_or(|text| content.has_error(text));
            let has_text = text.as_ref().is_none_or(|text| text.find(&content.payload).is_some());
            (has_error && has_text).then(|| {
                let mut job = JobSummary::new(view, &content);
                self.name_own_worker(&mut job);
                job
            })
        };
        let mut found = Vec::new();
        let (mut compared, mut page_size) = (0, SEARCH_PAGE);
        loop {
            let browse = handle.browse(query.state).order(query.order()).payloads(with_payload);
            let page = browse.after(after).limit(page_size).await?;
            compared += page.jobs.len();
            let matching: Vec<(usize, JobSummary)> = (page.jobs.iter().enumerate())
                .filter_map(|(position, view)| Some((position, summary_if_matching(view)?)))
                .collect();
            let free = limit - found.len();
            if matching.len() > free {
                // Read again up to the last job that fits, to get the cursor after it.
                page_size = matching[free - 1].0 + 1;
                continue;
            }
            found.extend(matching.into_iter().map(|(_, job)| job));
            (after, page_size) = (page.next, SEARCH_PAGE);
            if after.is_none() || found.len() >= limit || compared >= MAX_JOBS_COMPARED {
                return Ok((found, after));
            }
        }
    }

    /// Returns one job by id or key, without payload and headers for a viewer.
    ///
    /// If no live job has the key, returns the dead or ended job that last had it, among the latest
    /// 5,000 of each.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` if the store cannot read single jobs; `Unavailable`.
    pub async fn job(&self, queue: &QueueName, target: &Target) -> Result<JobDetail> {
        let view = self.view(queue, target).await?;
        let shows_content = self.may(Role::Reader);
        let content = self.redaction().apply(&view, shows_content);
        let mut job = JobSummary::new(&view, &content);
        self.name_worker(&mut job).await;
        if !shows_content {
            return Ok(JobDetail { job, headers: None, payload: None });
        }
        let has_ended = view.state == JobState::Ended;
        let content_type = content.headers.get(Headers::CONTENT_TYPE).map(String::as_str);
        let content_type = content_type.unwrap_or("application/json");
        let payload = (!has_ended).then(|| PayloadView::new(content_type, &content.payload));
        Ok(JobDetail { job, headers: Some(content.headers), payload })
    }

    /// Prefers a live job with the key over the dead or ended job that had it last.
    pub(crate) async fn view(&self, queue: &QueueName, target: &Target) -> Result<JobView> {
        let handle = self.ops.dq().queue(queue)?;
        let mut found = handle.get(target).await?;
        if let (None, Target::Key(key)) = (&found, target) {
            found = handle.last_with_key(key.as_str()).await?;
        }
        found.ok_or_else(|| not_found(queue, target))
    }

    pub(crate) fn summary(&self, view: &JobView) -> JobSummary {
        let mut job = JobSummary::new(view, &self.redaction().apply(view, false));
        self.name_own_worker(&mut job);
        job
    }
}

pub(crate) fn not_found(queue: &QueueName, target: &Target) -> OpsError {
    OpsError::NotFound { queue: queue.clone(), job: Some(name_of(target)) }
}

/// The target as requests write it.
pub(crate) fn name_of(target: &Target) -> String {
    match target {
        Target::Id(id) => id.to_string(),
        Target::Key(key) => format!("key:{key}"),
    }
}

/// Rejects keys, because a dead job has given up its key.
pub(crate) fn id_of(target: &Target) -> Result<JobId> {
    match target {
        Target::Id(id) => Ok(*id),
        Target::Key(key) => Err(Error::invalid(format!("key {key} does not name a dead job"))
            .remedy("a dead job has given up its key: use its id")
            .into()),
    }
}
