//! Shared by all pages: language, links, navigation, rendering.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use askama::Template;
use axum::extract::{FromRequestParts, Query};
use axum::http::header::ACCEPT_LANGUAGE;
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use axum::response::{Html, IntoResponse, Response};
use dq_core::{Backend, Timestamp};
use dq_ops::{Role, Session};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::format::When;
use super::text::{Lang, Texts};
use crate::problem::Problem;

/// Percent-encodes everything in a query except letters, digits and `-_.~`.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

pub(super) static STYLE: &str = include_str!("../../assets/style.css");
pub(super) static SCRIPT: &str = include_str!("../../assets/app.js");
pub(super) static ICON: &str = include_str!("../../assets/icon.svg");

/// Changes with the assets, so that browsers do not use cached older ones.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = DefaultHasher::new();
    (STYLE, SCRIPT, ICON).hash(&mut hasher);
    format!("{:x}", hasher.finish())
});

#[derive(Debug)]
pub(super) struct Chrome {
    pub(super) session: Session,
    pub(super) lang: Lang,
    pub(super) t: &'static Texts,
    /// The navigation entry, such as `jobs`.
    pub(super) active: &'static str,
    pub(super) title: String,
    pub(super) store: String,
    pub(super) version: &'static str,
    /// The result of the previous action.
    pub(super) notice: Option<&'static str>,
    /// This page in the other language. For a form error, the form's page.
    pub(super) other_lang: String,
    /// This page's address, for forms that lead back.
    pub(super) here: String,
    /// Whether the page needs a job search. The job list has its own.
    pub(super) needs_search: bool,
    /// The page's queue; the navigation links to its jobs.
    queue: Option<String>,
    /// Whether the address names a language, which links then keep.
    asked_lang: bool,
}

pub(super) type PageParams = BTreeMap<String, String>;

pub(super) struct PageRequest {
    pub(super) session: Session,
    pub(super) params: PageParams,
    /// The page path, without its leading slash.
    page: String,
    /// The `Accept-Language` header.
    accept: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for PageRequest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Query(params) = Query::<PageParams>::from_request_parts(parts, state)
            .await
            .map_err(|error| Problem::bad_request(error.body_text()))?;
        let session = parts.extensions.get::<Session>().cloned().ok_or_else(|| {
            Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", "there is no session")
        })?;
        let accept = parts.headers.get(ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok());
        let accept = accept.map(str::to_owned);
        let page = parts.uri.path().trim_start_matches('/').to_owned();
        Ok(Self { session, params, page, accept })
    }
}

impl PageRequest {
    /// Turns this into a request for another page.
    pub(super) fn at(self, address: &str) -> Self {
        let uri: Option<Uri> = format!("/{}", address.trim_start_matches("./")).parse().ok();
        let params = uri.as_ref().and_then(|uri| Query::try_from_uri(uri).ok());
        let page = uri.map(|uri| uri.path().trim_start_matches('/').to_owned());
        let Query(params) = params.unwrap_or_default();
        Self { params, page: page.unwrap_or_default(), ..self }
    }

    pub(super) fn param(&self, name: &str) -> Option<&str> {
        self.params.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns this page's address with one parameter changed; `None` omits it.
    pub(super) fn with(&self, c: &Chrome, name: &str, value: Option<&str>) -> String {
        let kept = |known: &str| known != name && !matches!(known, "lang" | "done");
        let params = self.params.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let params = params.filter(|(known, value)| kept(known) && !value.is_empty());
        let params: Vec<_> = params.chain(value.map(|value| (name, value))).collect();
        c.link(&self.page, &params)
    }

    pub(super) fn chrome(&self, active: &'static str) -> Chrome {
        let lang = Lang::of(self.param("lang"), self.accept.as_deref());
        let t = lang.texts();
        let kept = |name: &str| !matches!(name, "lang" | "done");
        let mut params: Vec<(&str, &str)> = self
            .params
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .filter(|(name, value)| kept(name) && !value.is_empty())
            .collect();
        let here_params = params.clone();
        params.push(("lang", if lang == Lang::En { "zh" } else { "en" }));
        let other_lang = address(&self.page, &params);
        let mut chrome = Chrome {
            session: self.session.clone(),
            lang,
            t,
            active,
            title: String::new(),
            store: self.session_store(),
            version: &VERSION,
            notice: self.param("done").and_then(|done| notice(t, done)),
            other_lang,
            here: String::new(),
            needs_search: self.page != "jobs",
            queue: self.queue().map(str::to_owned),
            asked_lang: self.param("lang").is_some(),
        };
        chrome.here = chrome.link(&self.page, &here_params);
        chrome
    }

    /// Returns the page's queue, unless the page lists its jobs.
    fn queue(&self) -> Option<&str> {
        match self.page.as_str() {
            "queue" => self.param("name"),
            "job" | "bulk" => self.param("queue"),
            _ => None,
        }
    }

    fn session_store(&self) -> String {
        self.session.ops().dq().backend().name().to_owned()
    }
}

fn notice(t: &'static Texts, done: &str) -> Option<&'static str> {
    Some(match done {
        "cancel" => t.done_cancelled,
        "reschedule" => t.done_moved,
        "run" => t.done_run,
        "replay" => t.done_replayed,
        "remove" => t.done_removed,
        "pause" => t.done_paused,
        "resume" => t.done_resumed,
        "purge" => t.done_purged,
        "bulk" => t.done_bulk,
        "schedule-pause" => t.done_schedule_paused,
        "schedule-resume" => t.done_schedule_resumed,
        "schedule-skip" => t.done_schedule_skipped,
        "schedule-run" => t.done_schedule_run,
        "schedule-kept" => t.done_schedule_kept,
        "schedule-backfill" => t.done_schedule_backfill,
        "schedule-no-backfill" => t.done_schedule_no_backfill,
        "schedule-remove" => t.done_schedule_removed,
        _ => return None,
    })
}

fn address(page: &str, params: &[(&str, &str)]) -> String {
    let mut text = if page.is_empty() { "./".to_owned() } else { page.to_owned() };
    for (position, (name, value)) in params.iter().enumerate() {
        text.push(if position == 0 { '?' } else { '&' });
        text.extend(utf8_percent_encode(name, ENCODED));
        text.push('=');
        text.extend(utf8_percent_encode(value, ENCODED));
    }
    text
}

impl Chrome {
    pub(super) fn link(&self, page: &str, params: &[(&str, &str)]) -> String {
        let mut params = params.to_vec();
        if self.asked_lang {
            params.push(("lang", self.lang.tag()));
        }
        address(page, &params)
    }

    pub(super) fn nav(&self) -> Vec<NavEntry> {
        let t = self.t;
        let mut pages = vec![
            ("overview", "", t.overview),
            ("jobs", "jobs", t.jobs),
            ("dead", "dead", t.dead),
            ("schedules", "schedules", t.schedules),
            ("forecast", "forecast", t.forecast),
            ("runners", "runners", t.runners),
            ("check", "check", t.check),
        ];
        if self.administers() {
            pages.push(("audit", "audit", t.audit));
        }
        let entry = |(id, page, name)| NavEntry {
            href: match &self.queue {
                Some(queue) if id == "jobs" => self.link(page, &[("queue", queue)]),
                _ => self.page(page),
            },
            name,
            is_current: self.active == id,
            keeps: matches!(id, "overview" | "jobs"),
        };
        pages.into_iter().map(entry).collect()
    }

    pub(super) fn page(&self, page: &str) -> String {
        self.link(page, &[])
    }

    pub(super) fn job_link(&self, queue: &str, id: &str) -> String {
        self.link("job", &[("queue", queue), ("id", id)])
    }

    pub(super) fn chosen_lang(&self) -> Option<&'static str> {
        self.asked_lang.then(|| self.lang.tag())
    }

    pub(super) fn when(&self, at: Timestamp, now: Timestamp) -> When {
        When::new(at, now, self.lang)
    }

    pub(super) fn operates(&self) -> bool {
        self.session.may(Role::Operator)
    }

    pub(super) fn administers(&self) -> bool {
        self.session.may(Role::Admin)
    }

    pub(super) fn reads(&self) -> bool {
        self.session.may(Role::Reader)
    }
}

pub(super) struct NavEntry {
    pub(super) href: String,
    pub(super) name: &'static str,
    pub(super) is_current: bool,
    /// The script restores the last view of this page.
    pub(super) keeps: bool,
}

pub(super) fn render(status: StatusCode, template: &impl Template) -> Response {
    match template.render() {
        Ok(html) => (status, Html(html)).into_response(),
        Err(error) => {
            let detail = format!("the page cannot be rendered: {error}");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail).into_response()
        }
    }
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    c: Chrome,
    problem: Problem,
    back: String,
}

pub(super) fn problem(mut chrome: Chrome, problem: Problem, back: Option<String>) -> Response {
    chrome.title = chrome.t.problem.to_owned();
    let back = back.unwrap_or_else(|| chrome.page(""));
    let status = problem.status();
    render(status, &ProblemPage { c: chrome, problem, back })
}
