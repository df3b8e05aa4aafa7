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
const STATES: [(JobState, &str); 5] = [
    (JobState::Dead, "dead"),
    (JobState::Ready, "ready"),
    (JobState::Running, "running"),
    (JobState::Scheduled, "scheduled"),
    (JobState::Ended, "ended"),
];

#[derive(Template)]
#[template(path = "jobs.html")]
struct Page {
    c: Chrome,
    list: List,
}

/// The list's head: which jobs it has, and where else one can go.
struct List {
    /// The queue; empty for all.
    queue: String,
    queue_href: String,
    queues: Vec<String>,
    tabs: Vec<Tab>,
    /// The state; empty for all.
    state: &'static str,
    find: String,
    error: String,
    contains: String,
    is_filtered: bool,
    clear: String,
    /// The same search across all queues and states, unless this page shows it.
    everywhere: Option<String>,
    sections: Vec<Section>,
    empty: &'static str,
}

struct Tab {
    class: &'static str,
    name: &'static str,
    count: Option<String>,
    href: String,
    is_current: bool,
}

/// The jobs of one state.
struct Section {
    class: &'static str,
    name: &'static str,
    /// The sort order.
    order: &'static str,
    /// Links to the full list, unless this page shows it.
    all: Option<String>,
    jobs: Vec<JobSummary>,
    /// There may be more jobs than a listing of all queues reads.
    is_cut: bool,
    time_label: &'static str,
    detail_label: &'static str,
    first: Option<String>,
    next: Option<String>,
    bulk: Vec<(&'static str, String)>,
}

/// Returns the filter in a page's address.
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
    let sections = match found(&request, &asked, &overview).await? {
        Some(found) => {
            if let [job] = &found.jobs[..]
                && request.param("find").is_some_and(|find| is_exactly(job, find.trim()))
            {
                return Ok((StatusCode::SEE_OTHER, [(LOCATION, c.job_href(job))]).into_response());
            }
            let of = |(state, class): (JobState, &'static str)| {
                let jobs = found.jobs.iter().filter(|job| job.state == state).cloned().collect();
                Section { is_cut: !found.complete, ..section(&c, state, class, jobs) }
            };
            STATES.into_iter().map(of).collect()
        }
        None => sections(&request, &c, &asked, &overview).await?,
    };
    let list = list(&request, &c, &asked, &overview, sections);
    if let Some(queue) = &asked.queue {
        c.title = format!("{queue} · {}", c.t.jobs);
    }
    render(StatusCode::OK, &Page { c, list })
}

/// Searches all queues and states: by id, or if the address has nothing but a search text.
async fn found(
    request: &PageRequest,
    asked: &Asked<'_>,
    overview: &Overview,
) -> Result<Option<JobsAnywhere>> {
    let Some(find) = request.param("find") else { return Ok(None) };
    let is_id = find.trim().parse::<JobId>().is_ok();
    let has_nothing_else = asked.is_everywhere() && asked.kept.len() == 1;
    if !is_id && !has_nothing_else {
        return Ok(None);
    }
    Ok(Some(request.session.find(overview, find).await?))
}

/// What the address asks for.
struct Asked<'a> {
    queue: Option<QueueName>,
    state: Option<(JobState, &'static str)>,
    filter: JobFilter,
    contains: Option<&'a str>,
    after: Option<&'a str>,
    /// The parameters that select jobs: `find`, `error` and `contains`.
    kept: Vec<(&'a str, &'a str)>,
}

impl<'a> Asked<'a> {
    fn of(request: &'a PageRequest, c: &Chrome) -> Result<Self> {
        let queue = request.param("queue").map(QueueName::new).transpose()?;
        let state_named = |name: &str| {
            let found = STATES.into_iter().find(|(_, known)| *known == name);
            found.ok_or_else(|| Problem::bad_request("there is no such state"))
        };
        let state = request.param("state").map(state_named).transpose()?;
        let after = request.param("after");
        if after.is_some() && (queue.is_none() || state.is_none()) {
            return Err(Problem::bad_request(
                "after is a position in the list of one queue and state",
            ));
        }
        let contains = request.param("contains").filter(|_| c.reads());
        let kept = [
            ("find", request.param("find")),
            ("error", request.param("error")),
            ("contains", contains),
        ];
        let kept = kept.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        Ok(Self { queue, state, filter: filter_of(request), contains, after, kept })
    }

    /// Whether the address names neither a queue nor a state.
    fn is_everywhere(&self) -> bool {
        self.queue.is_none() && self.state.is_none()
    }

    /// Returns the parameters for a listing, with or without the filter.
    fn params<'b>(&'b self, state: Option<&'b str>, filtered: bool) -> Vec<(&'b str, &'b str)> {
        let queue = self.queue.as_ref().map(|queue| ("queue", queue.as_str()));
        let state = state.map(|state| ("state", state));
        let kept = self.kept.iter().copied().filter(|_| filtered);
        queue.into_iter().chain(state).chain(kept).collect()
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

/// Loads the requested state, or a few jobs of each.
async fn sections(
    request: &PageRequest,
    c: &Chrome,
    asked: &Asked<'_>,
    overview: &Overview,
) -> Result<Vec<Section>> {
    let session = &request.session;
    let mut sections = Vec::new();
    for (state, class) in STATES {
        let is_asked = asked.state.is_some_and(|(asked, _)| asked == state);
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
        let is_empty = jobs.is_empty();
        let mut section = section(c, state, class, jobs);
        let with = |more: &[(&str, &str)]| {
            c.link("jobs", &[&asked.params(Some(class), true)[..], more].concat())
        };
        if is_asked {
            section.is_cut = is_cut;
            section.first = query.after.as_ref().map(|_| with(&[]));
            section.next = next.as_deref().map(|next| with(&[("after", next)]));
            section.bulk = bulk_links(c, asked, class, is_empty);
        } else {
            section.all = Some(with(&[]));
        }
        sections.push(section);
    }
    Ok(sections)
}

/// Returns the list around its sections.
fn list(
    request: &PageRequest,
    c: &Chrome,
    asked: &Asked<'_>,
    overview: &Overview,
    mut sections: Vec<Section>,
) -> List {
    let t = c.t;
    let of_queue = |queue: &QueueSummary| match &asked.queue {
        Some(asked) => queue.queue == *asked,
        None => !queue.queue.is_reserved(),
    };
    let count = |state: &str| {
        let counts =
            overview.queues.iter().filter(|queue| of_queue(queue)).map(|queue| match state {
                "scheduled" => queue.scheduled,
                "ready" => queue.ready,
                "running" => queue.running,
                _ => queue.dead,
            });
        (!matches!(state, "" | "ended")).then(|| number(counts.sum()))
    };
    let state = asked.state.map_or("", |(_, state)| state);
    let tab = |class: &'static str, name: &'static str| Tab {
        class,
        name,
        count: count(class),
        href: c.link("jobs", &asked.params(Some(class).filter(|class| !class.is_empty()), false)),
        is_current: class == state,
    };
    let tabs = [("", t.all_states)].into_iter();
    let tabs = tabs.chain(STATES.map(|(state, class)| (class, state_label(c, state))));
    let text = |name: &str| request.param(name).unwrap_or_default().to_owned();
    let is_filtered = !asked.kept.is_empty();
    sections.retain(|section| !section.jobs.is_empty() || section.first.is_some());
    let find = request.param("find");
    let is_everywhere = asked.is_everywhere();
    let name = asked.queue.as_ref().map(|queue| queue.as_str().to_owned()).unwrap_or_default();
    List {
        queue_href: c.queue_link(&name),
        queues: overview.queues.iter().map(|queue| queue.queue.as_str().to_owned()).collect(),
        tabs: tabs.map(|(class, name)| tab(class, name)).collect(),
        state,
        find: text("find"),
        error: text("error"),
        contains: asked.contains.unwrap_or_default().to_owned(),
        is_filtered,
        clear: c.link("jobs", &asked.params(asked.state.map(|(_, state)| state), false)),
        everywhere: find.filter(|_| !is_everywhere).map(|find| c.link("jobs", &[("find", find)])),
        sections,
        empty: match (is_filtered, state) {
            (true, _) if find.is_some() && is_everywhere => t.empty_find,
            (true, _) => t.empty_filter,
            (false, "ended") => t.empty_ended,
            (false, "") => t.empty_all,
            (false, _) => t.empty_jobs,
        },
        queue: name,
    }
}

/// Returns a section without links.
fn section(c: &Chrome, state: JobState, class: &'static str, jobs: Vec<JobSummary>) -> Section {
    let t = c.t;
    let (time_label, detail_label, order) = match state {
        JobState::Dead => (t.ev_dead, t.error, t.newest_first),
        JobState::Ended => (t.ev_ended, t.outcome, t.newest_first),
        JobState::Running => (t.ev_claimed, t.worker, ""),
        JobState::Ready => (t.due, t.error, t.oldest_first),
        _ => (t.due, t.error, t.soonest_first),
    };
    Section {
        class,
        name: state_label(c, state),
        order,
        all: None,
        jobs,
        is_cut: false,
        time_label,
        detail_label,
        first: None,
        next: None,
        bulk: Vec::new(),
    }
}

fn state_label(c: &Chrome, state: JobState) -> &'static str {
    match state {
        JobState::Ended => c.t.ended,
        state => super::job::state_name(c, state),
    }
}

/// Links to bulk changes of all matching jobs. Bulk actions cannot filter by payload.
fn bulk_links(
    c: &Chrome,
    asked: &Asked<'_>,
    state: &str,
    is_empty: bool,
) -> Vec<(&'static str, String)> {
    let Some(queue) = &asked.queue else { return Vec::new() };
    if !c.operates() || asked.contains.is_some() || is_empty {
        return Vec::new();
    }
    let link = |action: &str| {
        let base = [("queue", queue.as_str()), ("do", action)];
        c.link("bulk", &[&base, &asked.kept[..]].concat())
    };
    match state {
        "scheduled" | "ready" => {
            vec![(c.t.move_all, link("reschedule")), (c.t.cancel_all, link("cancel"))]
        }
        "dead" => vec![(c.t.replay_all, link("replay")), (c.t.remove_all, link("remove"))],
        _ => Vec::new(),
    }
}
