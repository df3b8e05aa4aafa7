//! Job lists: all queues or one, problems first, or filtered by state, id and key.

use askama::Template;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use dq_core::{ErrorKind, JobId, JobState, QueueName};
use dq_ops::{JobFilter, JobQuery, JobSummary, JobsAnywhere, OpsError, Overview, QueueSummary};

use super::chrome::{Chrome, PageRequest, render};
use super::format::number;
use super::job_row::short_id;
use crate::problem::{Problem, Result};

/// Jobs shown per state when the page shows all states.
const FEW: usize = 10;

/// States in page order: problems first.
const STATES: [JobState; 5] =
    [JobState::Dead, JobState::Ready, JobState::Running, JobState::Scheduled, JobState::Ended];

#[derive(Template)]
#[template(path = "jobs.html")]
struct Page {
    c: Chrome,
    /// The queue; empty for all.
    queue: String,
    queue_href: String,
    queues: Vec<String>,
    tabs: Vec<Tab>,
    /// The state; empty for all.
    state: String,
    find: String,
    error: String,
    contains: String,
    is_filtered: bool,
    clear: String,
    /// Links to the same search in all queues and states, unless this page shows it.
    everywhere: Option<String>,
    sections: Vec<Section>,
    empty: &'static str,
}

struct Tab {
    class: String,
    name: &'static str,
    count: Option<String>,
    href: String,
    is_current: bool,
}

struct Section {
    state: JobState,
    name: &'static str,
    order: &'static str,
    time_label: &'static str,
    detail_label: &'static str,
    jobs: Vec<JobSummary>,
    /// Whether there may be more jobs than a listing of all queues reads.
    is_cut: bool,
    /// Links to the full list, unless this page shows it.
    all: Option<String>,
    first: Option<String>,
    next: Option<String>,
    bulk: Vec<(&'static str, String)>,
}

pub(super) fn filter_of(request: &PageRequest) -> JobFilter {
    let mut filter = JobFilter::default();
    filter.key_prefix = request.param("find").map(str::to_owned);
    filter.error = request.param("error").map(str::to_owned);
    filter
}

/// `GET jobs?queue=&state=&find=&error=&contains=&after=`
pub(super) async fn page(request: PageRequest) -> Result<Response> {
    let overview = request.session.overview().await?;
    let mut c = request.chrome(request.t().jobs, overview.at);
    let asked = Asked::of(&request, &c)?;
    if let Some(queue) = &asked.queue {
        c.title = format!("{queue} · {}", c.t.jobs);
    }
    let sections = match found(&request, &asked, &overview).await? {
        Some(found) => {
            if let [job] = &found.jobs[..]
                && asked.find.is_some_and(|find| is_exactly(job, find.trim()))
            {
                return Ok((StatusCode::SEE_OTHER, [(LOCATION, c.job_href(job))]).into_response());
            }
            let section = |state| {
                let jobs = found.jobs.iter().filter(|job| job.state == state).cloned().collect();
                Section { is_cut: !found.complete, ..Section::new(&c, state, jobs) }
            };
            STATES.map(section).into()
        }
        None => sections(&request, &c, &asked, &overview).await?,
    };
    render(StatusCode::OK, &list(c, &asked, &overview, sections))
}

/// Searches all queues and states: by id, or if the address has nothing but a search text.
async fn found(
    request: &PageRequest,
    asked: &Asked<'_>,
    overview: &Overview,
) -> Result<Option<JobsAnywhere>> {
    let Some(find) = asked.find else { return Ok(None) };
    let is_id = find.trim().parse::<JobId>().is_ok();
    let has_nothing_else = asked.is_everywhere() && asked.kept.len() == 1;
    if !is_id && !has_nothing_else {
        return Ok(None);
    }
    Ok(Some(request.session.find(overview, find).await?))
}

struct Asked<'a> {
    queue: Option<QueueName>,
    state: Option<JobState>,
    filter: JobFilter,
    find: Option<&'a str>,
    error: Option<&'a str>,
    contains: Option<&'a str>,
    after: Option<&'a str>,
    /// The parameters that select jobs: `find`, `error` and `contains`.
    kept: Vec<(&'a str, &'a str)>,
}

impl<'a> Asked<'a> {
    fn of(request: &'a PageRequest, c: &Chrome) -> Result<Self> {
        let queue = request.param("queue").map(QueueName::new).transpose()?;
        let state_named = |name: &str| {
            let found = STATES.into_iter().find(|state| state.to_string() == name);
            found.ok_or_else(|| {
                let name: String = name.chars().take(32).collect();
                Problem::bad_request(format!("there is no state {name:?}")).remedy(format!(
                    "the states are {}",
                    STATES.map(|it| it.to_string()).join(", ")
                ))
            })
        };
        let state = request.param("state").map(state_named).transpose()?;
        let after = request.param("after");
        if after.is_some() && (queue.is_none() || state.is_none()) {
            return Err(Problem::bad_request(
                "after is a position in the list of one queue and state",
            ));
        }
        let (find, error) = (request.param("find"), request.param("error"));
        let contains = request.param("contains").filter(|_| c.reads());
        let kept = [("find", find), ("error", error), ("contains", contains)];
        let kept = kept.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        Ok(Self { queue, state, filter: filter_of(request), find, error, contains, after, kept })
    }

    /// Whether the address names neither a queue nor a state.
    fn is_everywhere(&self) -> bool {
        self.queue.is_none() && self.state.is_none()
    }

    fn link(&self, c: &Chrome, state: Option<JobState>, params: &[(&str, &str)]) -> String {
        let state = state.map(|state| state.to_string());
        let queue = self.queue.as_ref().map(|queue| ("queue", queue.as_str()));
        let base = queue.into_iter().chain(state.as_deref().map(|state| ("state", state)));
        c.link("jobs", &base.chain(params.iter().copied()).collect::<Vec<_>>())
    }

    fn query(&self, state: JobState) -> JobQuery {
        let mut query = JobQuery::new(state);
        query.filter = self.filter.clone();
        query.contains = self.contains.map(str::to_owned);
        query.descending = matches!(state, JobState::Dead | JobState::Ended);
        query
    }
}

/// Whether the text is the job's whole id or key.
fn is_exactly(job: &JobSummary, text: &str) -> bool {
    job.key.as_deref() == Some(text) || text.parse().is_ok_and(|id: JobId| id == job.id)
}

async fn sections(
    request: &PageRequest,
    c: &Chrome,
    asked: &Asked<'_>,
    overview: &Overview,
) -> Result<Vec<Section>> {
    let session = &request.session;
    let mut sections = Vec::new();
    for state in STATES {
        let is_asked = asked.state == Some(state);
        // Without a state, the page shows a few jobs of each. Ended jobs are no problem, so it has
        // them only in a search.
        let is_sample =
            asked.state.is_none() && (state != JobState::Ended || !asked.kept.is_empty());
        if !is_asked && !is_sample {
            continue;
        }
        let mut query = asked.query(state);
        if is_asked {
            query.after = asked.after.map(str::to_owned);
        } else {
            query.limit = FEW;
        }
        let read = match &asked.queue {
            Some(queue) => {
                session.jobs(queue, &query).await.map(|page| (page.jobs, page.next, false))
            }
            None => {
                let found = session.jobs_anywhere(overview, &query).await;
                found.map(|found| (found.jobs, None, !found.complete))
            }
        };
        let (jobs, next, is_cut) = match read {
            Ok(read) => read,
            // The store has no history, or keeps no payloads of ended jobs.
            Err(OpsError::Store(error)) if is_sample && error.kind() == ErrorKind::Unsupported => {
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let list =
            |more: &[(&str, &str)]| asked.link(c, Some(state), &[&asked.kept[..], more].concat());
        let mut section = Section::new(c, state, jobs);
        if is_asked {
            section.is_cut = is_cut;
            section.first = asked.after.map(|_| list(&[]));
            section.next = next.as_deref().map(|next| list(&[("after", next)]));
            section.bulk = bulk_links(c, asked, &section);
        } else {
            section.all = Some(list(&[]));
        }
        sections.push(section);
    }
    Ok(sections)
}

impl Section {
    fn new(c: &Chrome, state: JobState, jobs: Vec<JobSummary>) -> Self {
        let t = c.t;
        let (time_label, detail_label, order) = match state {
            JobState::Dead => (t.ev_dead, t.error, t.newest_first),
            JobState::Ended => (t.ev_ended, t.outcome, t.newest_first),
            JobState::Running => (t.ev_claimed, t.worker, ""),
            JobState::Ready => (t.due, t.error, t.oldest_first),
            _ => (t.due, t.error, t.soonest_first),
        };
        let (name, is_cut) = (state_label(c, state), false);
        let (all, first, next, bulk) = Default::default();
        Self { state, name, order, time_label, detail_label, jobs, is_cut, all, first, next, bulk }
    }
}

fn list(c: Chrome, asked: &Asked<'_>, overview: &Overview, mut sections: Vec<Section>) -> Page {
    let t = c.t;
    let is_counted = |queue: &&QueueSummary| match &asked.queue {
        Some(asked) => queue.queue == *asked,
        None => !queue.queue.is_reserved(),
    };
    let counted = || overview.queues.iter().filter(is_counted);
    let tab = |state: Option<JobState>| Tab {
        class: state.map(|state| state.to_string()).unwrap_or_default(),
        name: state.map_or(t.all_states, |state| state_label(&c, state)),
        count: state
            .filter(|state| *state != JobState::Ended)
            .map(|state| number(counted().filter_map(|queue| queue.count(state)).sum())),
        href: asked.link(&c, state, &[]),
        is_current: state == asked.state,
    };
    sections.retain(|section| !section.jobs.is_empty() || section.first.is_some());
    let is_filtered = !asked.kept.is_empty();
    let is_everywhere = asked.is_everywhere();
    let empty = match (is_filtered, asked.state) {
        (true, _) if asked.find.is_some() && is_everywhere => t.empty_find,
        (true, _) => t.empty_filter,
        (false, Some(JobState::Ended)) => t.empty_ended,
        (false, None) => t.empty_all,
        (false, Some(_)) => t.empty_jobs,
    };
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let queue = text(asked.queue.as_ref().map(QueueName::as_str));
    let everywhere = asked.find.filter(|_| !is_everywhere);
    Page {
        queue_href: c.queue_link(&queue),
        queue,
        queues: overview.queues.iter().map(|queue| queue.queue.to_string()).collect(),
        tabs: [None].into_iter().chain(STATES.map(Some)).map(tab).collect(),
        state: asked.state.map(|state| state.to_string()).unwrap_or_default(),
        find: text(asked.find),
        error: text(asked.error),
        contains: text(asked.contains),
        is_filtered,
        clear: asked.link(&c, asked.state, &[]),
        everywhere: everywhere.map(|find| c.link("jobs", &[("find", find)])),
        sections,
        empty,
        c,
    }
}

fn state_label(c: &Chrome, state: JobState) -> &'static str {
    match state {
        JobState::Ended => c.t.ended,
        state => c.state_name(state),
    }
}

/// Links to bulk changes of all matching jobs. Bulk actions cannot filter by payload.
fn bulk_links(c: &Chrome, asked: &Asked<'_>, section: &Section) -> Vec<(&'static str, String)> {
    let Some(queue) = &asked.queue else { return Vec::new() };
    if !c.changes(queue) || asked.contains.is_some() || section.jobs.is_empty() {
        return Vec::new();
    }
    let link = |action: &str| {
        let base = [("queue", queue.as_str()), ("do", action)];
        c.link("bulk", &[&base, &asked.kept[..]].concat())
    };
    match section.state {
        JobState::Scheduled | JobState::Ready => {
            vec![(c.t.move_all, link("reschedule")), (c.t.cancel_all, link("cancel"))]
        }
        JobState::Dead => {
            vec![(c.t.replay_all, link("replay")), (c.t.remove_all, link("remove"))]
        }
        _ => Vec::new(),
    }
}
