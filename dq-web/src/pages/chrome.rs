//! Shared by all pages: language, links, navigation, rendering.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use askama::Template;
use axum::extract::{FromRequestParts, Query, Request};
use axum::http::header::ACCEPT_LANGUAGE;
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Response};
use dq_core::{Backend, JobState, QueueName, Timestamp};
use dq_ops::{Role, Session};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::text::{Lang, Texts};
use crate::problem::{Problem, Result};

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
    pub(super) title: String,
    /// The time of the page's data; its relative times count from here.
    pub(super) now: Timestamp,
    pub(super) version: &'static str,
    /// The result of the previous action.
    pub(super) notice: Option<&'static str>,
    /// This page in the other language. For a form error, the form's page.
    pub(super) other_lang: String,
    /// This page's address, for forms that lead back.
    pub(super) here: String,
    /// The page path, without its leading slash.
    page: String,
    /// The page's queue; the navigation links to its jobs.
    queue: Option<String>,
    /// Whether the address names a language, which links then keep.
    asked_lang: bool,
}

pub(super) type PageParams = BTreeMap<String, String>;

#[derive(Clone)]
pub(super) struct PageRequest {
    pub(super) session: Session,
    pub(super) params: PageParams,
    page: String,
    accept: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for PageRequest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
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

    /// Returns the parameters of this page's address, without the language and the last action.
    fn kept(&self) -> impl Iterator<Item = (&str, &str)> {
        let params = self.params.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        params.filter(|(name, value)| !matches!(*name, "lang" | "done") && !value.is_empty())
    }

    /// Returns this page's address with one parameter changed; `None` omits it.
    pub(super) fn with(&self, c: &Chrome, name: &str, value: Option<&str>) -> String {
        let params = self.kept().filter(|(known, _)| *known != name);
        let params: Vec<_> = params.chain(value.map(|value| (name, value))).collect();
        c.link(&self.page, &params)
    }

    fn lang(&self) -> Lang {
        Lang::of(self.param("lang"), self.accept.as_deref())
    }

    pub(super) fn t(&self) -> &'static Texts {
        self.lang().texts()
    }

    pub(super) fn chrome(&self, title: impl Into<String>, now: Timestamp) -> Chrome {
        let (lang, t) = (self.lang(), self.t());
        let other = if lang == Lang::En { "zh" } else { "en" };
        let other_lang = self.kept().chain([("lang", other)]).collect::<Vec<_>>();
        let notice = |done: &str| t.get(&format!("done_{}", done.replace('-', "_")));
        let queue = match self.page.as_str() {
            "queue" => self.param("name"),
            "job" | "bulk" => self.param("queue"),
            _ => None,
        };
        let mut chrome = Chrome {
            session: self.session.clone(),
            lang,
            t,
            title: title.into(),
            now,
            version: &VERSION,
            notice: self.param("done").and_then(notice),
            other_lang: address(&self.page, &other_lang),
            here: String::new(),
            page: self.page.clone(),
            queue: queue.map(str::to_owned),
            asked_lang: self.param("lang").is_some(),
        };
        chrome.here = chrome.link(&self.page, &self.kept().collect::<Vec<_>>());
        chrome
    }
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
            ("", t.overview),
            ("jobs", t.jobs),
            ("dead", t.dead),
            ("schedules", t.schedules),
            ("forecast", t.forecast),
            ("runners", t.runners),
            ("check", t.check),
        ];
        if self.administers() {
            pages.push(("audit", t.audit));
        }
        let current = match self.page.as_str() {
            "queue" => "",
            "job" | "bulk" => "jobs",
            "schedule" => "schedules",
            page => page,
        };
        let entry = |(page, name)| NavEntry {
            href: match &self.queue {
                Some(queue) if page == "jobs" => self.link(page, &[("queue", queue)]),
                _ => self.page(page),
            },
            name,
            is_current: page == current,
            keeps: matches!(page, "" | "jobs"),
        };
        pages.into_iter().map(entry).collect()
    }

    pub(super) fn page(&self, page: &str) -> String {
        self.link(page, &[])
    }

    pub(super) fn queue_link(&self, queue: &str) -> String {
        self.link("queue", &[("name", queue)])
    }

    pub(super) fn jobs_link(&self, queue: &str, state: JobState) -> String {
        self.link("jobs", &[("queue", queue), ("state", &state.to_string())])
    }

    pub(super) fn schedule_link(&self, name: &str) -> String {
        self.link("schedule", &[("name", name)])
    }

    /// Whether the page needs a job search. The job list has its own.
    pub(super) fn needs_search(&self) -> bool {
        self.page != "jobs"
    }

    pub(super) fn store(&self) -> String {
        self.session.ops().dq().backend().name().to_owned()
    }

    pub(super) fn chosen_lang(&self) -> Option<&'static str> {
        self.asked_lang.then(|| self.lang.tag())
    }

    pub(super) fn operates(&self) -> bool {
        self.session.may(Role::Operator)
    }

    /// Whether the page offers changes of the queue and its jobs. Reserved queues have none.
    pub(super) fn changes(&self, queue: &QueueName) -> bool {
        self.operates() && !queue.is_reserved()
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

pub(super) fn render(status: StatusCode, template: &impl Template) -> Result<Response> {
    let html = template.render().map_err(|error| {
        let detail = format!("the page cannot be rendered: {error}");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
    })?;
    Ok((status, Html(html)).into_response())
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    c: Chrome,
    problem: Problem,
    back: String,
}

/// Renders the problem that a page returned as a page.
pub(super) async fn problems_as_pages(
    request: PageRequest,
    asked: Request,
    next: Next,
) -> Response {
    let mut response = next.run(asked).await;
    match response.extensions_mut().remove::<Problem>() {
        Some(problem) => problem_page(&request, problem, None),
        None => response,
    }
}

pub(super) fn problem_page(
    request: &PageRequest,
    problem: Problem,
    back: Option<String>,
) -> Response {
    let c = request.chrome(request.t().problem, Timestamp::EPOCH);
    let parent = if request.page == "schedule" { "schedules" } else { "" };
    let back = back.unwrap_or_else(|| c.page(parent));
    let page = ProblemPage { back, problem, c };
    render(page.problem.status(), &page).unwrap_or_else(Problem::into_response)
}
