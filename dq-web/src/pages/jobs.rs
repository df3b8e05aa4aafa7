//! Job lists: all queues or one, problems first, or filtered by state, id and key.

use askama::Template;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use dq_core::{ErrorKind, JobId, JobState, QueueName, Timestamp};
use dq_ops::{JobFilter, JobQuery, JobSummary, OpsError, Overview, QueueSummary};

use super::chrome::{Chrome, PageRequest, problem, render};
use super::format::{When, number};
use super::overview::LATE_MS;
use crate::problem::Problem;

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

struct Section {
    class: &'static str,
    name: &'static str,
    /// Names the sort order.
    order: &'static str,
    /// Links to the full list, unless this page shows it.
    all: Option<String>,
    rows: Vec<JobRow>,
    /// There may be more jobs than a listing of all queues reads.
    is_cut: bool,
    time_label: &'static str,
    detail_label: &'static str,
    first: Option<String>,
    next: Option<String>,
    bulk: Vec<(&'static str, String)>,
}

struct JobRow {
    id: String,
    short_id: String,
    key: Option<String>,
    queue: String,
    queue_href: String,
    href: String,
    when: When,
    is_late: bool,
    attempts: String,
    /// Why the job is dead, in a word.
    kind: Option<&'static str>,
    detail: Option<String>,
    is_error: bool,
    can_run: bool,
    can_cancel: bool,
    can_replay: bool,
}

pub(super) fn filter_of(request: &PageRequest) -> JobFilter {
    let mut filter = JobFilter::default();
    filter.key_prefix = request.param("find").map(str::to_owned);
    filter.error = request.param("error").map(str::to_owned);
    filter
}

/// `GET jobs?queue=&state=&find=&error=&contains=&after=`
pub(super) async fn page(request: PageRequest) -> Response {
    let mut c = request.chrome("jobs");
    c.title = c.t.jobs.to_owned();
    match load(&request, &c).await {
        Ok(Loaded::Job(location)) => {
            (StatusCode::SEE_OTHER, [(LOCATION, location)]).into_response()
        }
        Ok(Loaded::List(list)) => {
            if !list.queue.is_empty() {
                c.title = format!("{} · {}", list.queue, c.t.jobs);
            }
            render(StatusCode::OK, &Page { c, list: *list })
        }
        Err(error) => problem(c, error, None),
    }
}

enum Loaded {
    /// The search found exactly one job; this is its address.
    Job(String),
    List(Box<List>),
}

struct Asked<'a> {
    queue: Option<QueueName>,
    state: Option<(JobState, &'static str)>,
    filter: JobFilter,
    contains: Option<&'a str>,
    after: Option<&'a str>,
    kept: Vec<(&'a str, &'a str)>,
}

impl<'a> Asked<'a> {
    fn of(request: &'a PageRequest, c: &Chrome) -> Result<Self, Problem> {
        let queue = request.param("queue").map(QueueName::new).transpose()?;
        let state = |name| STATES.into_iter().find(|(_, known)| *known == name);
        let state = request
            .param("state")
            .map(|name| state(name).ok_or_else(|| Problem::bad_request("there is no such state")));
        let state: Option<(JobState, &'static str)> = state.transpose()?;
        let after = request.param("after");
        if after.is_some() && (queue.is_none() || state.is_none()) {
            return Err(Problem::bad_request(
                "after is a position in the list of one queue and state",
            ));
        }
        let contains = request.param("contains").filter(|_| c.reads());
        let kept = ["find", "error", "contains"]
            .into_iter()
            .filter(|param| *param != "contains" || contains.is_some())
            .filter_map(|param| Some((param, request.param(param)?)))
            .collect();
        Ok(Self { queue, state, filter: filter_of(request), contains, after, kept })
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

async fn load(request: &PageRequest, c: &Chrome) -> Result<Loaded, Problem> {
    let session = &request.session;
    let asked = Asked::of(request, c)?;
    let overview = session.overview().await?;
    let found = match request.param("find") {
        // An id selects its job in any state and queue.
        Some(find) if find.trim().parse::<JobId>().is_ok() => {
            Some(session.find(&overview, find).await?)
        }
        Some(find) if (&asked.queue, asked.state, asked.kept.len()) == (&None, None, 1) => {
            Some(session.find(&overview, find).await?)
        }
        _ => None,
    };
    let sections = match found {
        Some(found) => {
            if let [job] = &found.jobs[..]
                && request.param("find").is_some_and(|find| is_exactly(job, find.trim()))
            {
                return Ok(Loaded::Job(c.job_link(job.queue.as_str(), &job.id.to_string())));
            }
            let of = |(state, class): (JobState, &'static str)| {
                let jobs: Vec<_> = found.jobs.iter().filter(|job| job.state == state).collect();
                (!jobs.is_empty()).then(|| Section {
                    is_cut: !found.complete,
                    ..section(c, state, class, &jobs, overview.at)
                })
            };
            STATES.into_iter().filter_map(of).collect()
        }
        None => sections(request, c, &asked, &overview).await?,
    };
    Ok(Loaded::List(Box::new(list(request, c, &asked, &overview, sections))))
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
) -> Result<Vec<Section>, Problem> {
    let session = &request.session;
    let mut sections = Vec::new();
    for (state, class) in STATES {
        let is_asked = asked.state.is_some_and(|(asked, _)| asked == state);
        // Ended jobs are no problem, so they are listed only in a search.
        let is_shown =
            asked.state.is_none() && (state != JobState::Ended || !asked.kept.is_empty());
        if !is_asked && !is_shown {
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
            Err(OpsError::Store(error)) if is_shown && error.kind() == ErrorKind::Unsupported => {
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if is_shown && jobs.is_empty() {
            continue;
        }
        let jobs: Vec<&JobSummary> = jobs.iter().collect();
        let mut section = section(c, state, class, &jobs, overview.at);
        let with = |more: &[(&str, &str)]| {
            c.link("jobs", &[&asked.params(Some(class), true)[..], more].concat())
        };
        if is_asked {
            section.is_cut = is_cut;
            section.first = query.after.as_ref().map(|_| with(&[]));
            section.next = next.as_deref().map(|next| with(&[("after", next)]));
            section.bulk = bulk_links(c, asked, class, jobs.is_empty());
        } else {
            section.all = Some(with(&[]));
        }
        sections.push(section);
    }
    Ok(sections)
}

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
    sections.retain(|section| !section.rows.is_empty() || section.first.is_some());
    let find = request.param("find");
    let is_everywhere = asked.queue.is_none() && asked.state.is_none();
    let name = asked.queue.as_ref().map(|queue| queue.as_str().to_owned()).unwrap_or_default();
    List {
        queue_href: c.link("queue", &[("name", &name)]),
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

fn section(
    c: &Chrome,
    state: JobState,
    class: &'static str,
    jobs: &[&JobSummary],
    now: Timestamp,
) -> Section {
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
        rows: jobs.iter().map(|job| row(c, job, now)).collect(),
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

fn row(c: &Chrome, job: &JobSummary, now: Timestamp) -> JobRow {
    let id = job.id.to_string();
    let queue = job.queue.as_str();
    let waits = matches!(job.state, JobState::Scheduled | JobState::Ready);
    let changes = c.operates() && !job.queue.is_reserved();
    let at = match job.state {
        JobState::Dead => job.dead.as_ref().map(|dead| dead.at),
        JobState::Ended => job.ended.as_ref().map(|ended| ended.at),
        JobState::Running => job.claimed_at,
        _ => None,
    };
    let (detail, is_error) = detail(c, job);
    let late = now.since(job.due).as_millis() >= u128::from(LATE_MS);
    JobRow {
        // Ids differ most in their last part.
        short_id: format!("…{}", &id[id.len() - 12..]),
        href: c.job_link(queue, &id),
        key: job.key.clone(),
        queue: queue.to_owned(),
        queue_href: c.link("queue", &[("name", queue)]),
        when: c.when(at.unwrap_or(job.due), now),
        is_late: job.state == JobState::Ready && late,
        attempts: match job.max_attempts {
            Some(max) => format!("{}/{max}", job.attempts),
            None => job.attempts.to_string(),
        },
        kind: job.dead.as_ref().map(|dead| c.t.dead_kind(dead.kind.as_str())),
        detail,
        is_error,
        can_run: job.state == JobState::Scheduled && changes,
        can_cancel: waits && changes,
        can_replay: job.state == JobState::Dead && changes,
        id,
    }
}

/// Returns the most important fact about a job, and whether it is an error.
fn detail(c: &Chrome, job: &JobSummary) -> (Option<String>, bool) {
    if let Some(dead) = &job.dead {
        return (Some(dead.message.clone()), true);
    }
    if let Some(ended) = &job.ended {
        let reason = ended.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let ending = c.t.ending(ended.ending.as_str());
        return (Some(format!("{ending}{reason}")), false);
    }
    if job.state == JobState::Running {
        return (job.worker.clone(), false);
    }
    (job.last_error.clone(), true)
}
