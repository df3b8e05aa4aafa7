//! Commands on a server, through its HTTP API.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use dq_core::{Due, QueueName, Target};
use dq_ops::{
    BulkAction, BulkCount, BulkReport, CancelResult, FindingView, JobDetail, JobFilter, JobPage,
    JobQuery, Moved, QueueSummary, RunnerSummary, ScheduleRequest, ScheduledJob, Timeline,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ureq::http::{Request, Response};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::Source;
use crate::failure::{Failure, Result};

/// Maximum time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for a response, except of changes of many jobs, which may take long.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum length of a response: a page of jobs with long errors.
const MAX_RESPONSE: u64 = 64 * 1024 * 1024;

/// A server.
pub(crate) struct Api {
    agent: Agent,
    /// The address, without the slash at its end.
    base: String,
    token: Option<String>,
}

/// An error of the server.
#[derive(Deserialize)]
struct Problem {
    title: String,
    detail: String,
    #[serde(default)]
    remedy: Option<String>,
}

#[derive(Deserialize)]
struct Action {
    result: CancelResult,
}

/// Whether a request has changed something.
#[derive(Deserialize)]
pub(super) struct Changed {
    pub(super) changed: bool,
}

/// How long the server may take to answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    Short,
    Long,
}

impl Api {
    pub(crate) fn new(address: &str, token: Option<&str>) -> Result<Self> {
        let base = address.trim_end_matches('/').to_owned();
        let rest = base.strip_prefix("https://").or_else(|| base.strip_prefix("http://"));
        let Some(host) = rest.filter(|rest| !rest.is_empty()) else {
            return Err(Failure::usage(
                "the address of the server begins with neither http:// nor https://",
                "write it like http://127.0.0.1:7373",
            ));
        };
        let authority = host.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.contains('@') {
            // Errors print the address, so it holds no secret. This one does not print it either.
            return Err(Failure::usage(
                "the address of the server has a login",
                "give the token in DQ_TOKEN, and the address without it",
            ));
        }
        let mut config = Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .http_status_as_error(false)
            // A redirected change would be repeated as a GET: the redirect is shown instead.
            .max_redirects(0)
            .max_redirects_will_error(false);
        if is_loopback(host) {
            config = config.proxy(None);
        }
        if base.starts_with("https://") {
            config = config.tls_config(tls());
        }
        let agent = config.build().into();
        Ok(Self { agent, base, token: token.map(str::to_owned) })
    }

    /// Sends a request, and returns the status and the parsed body of a response that is not a
    /// problem. Statuses in `also` are no errors either.
    pub(super) fn send<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
        also: &[u16],
        takes: Takes,
    ) -> Result<T> {
        let mut request = Request::builder().method(method).uri(format!("{}/v1/{path}", self.base));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let timeout = (takes == Takes::Short).then_some(TIMEOUT);
        let invalid = |_| {
            Failure::usage(
                format!("a request to {} cannot be written", self.base),
                "check the address, the token and the names for characters that HTTP forbids",
            )
        };
        let response = match body {
            Some(body) => {
                let request = request.header("content-type", "application/json");
                let request = request.body(body.to_string()).map_err(invalid)?;
                let request = self.agent.configure_request(request);
                self.agent.run(request.timeout_global(timeout).build())
            }
            None => {
                let request = self.agent.configure_request(request.body(()).map_err(invalid)?);
                self.agent.run(request.timeout_global(timeout).build())
            }
        };
        let is_read = method == "GET";
        let mut response = response.map_err(|error| self.unreachable(&error, is_read))?;
        let status = response.status().as_u16();
        let text = response.body_mut().with_config().limit(MAX_RESPONSE).read_to_vec();
        let text = text.map_err(|error| self.unreachable(&error, is_read))?;
        if response.status().is_success() || also.contains(&status) {
            let parsed = serde_json::from_slice(&text);
            return parsed.map_err(|error| {
                Failure::new(
                    "internal",
                    format!("the response of {} cannot be read: {error}", self.base),
                    "is it a dq server of the same version?",
                )
            });
        }
        Err(self.problem(&response, &text, is_read))
    }

    /// The error in a response.
    fn problem(&self, response: &Response<Body>, text: &[u8], is_read: bool) -> Failure {
        if let Ok(Problem { title, detail, remedy }) = serde_json::from_slice(text) {
            return Failure::Error { kind: title, message: detail, remedy };
        }
        let status = response.status();
        let message = format!("{} responds with status {status}", self.base);
        let kind = match status.as_u16() {
            // A proxy that has passed the request on.
            502 | 504 if !is_read => return outcome_unknown(message),
            502..=504 => "unavailable",
            _ => "response",
        };
        Failure::new(kind, message, "is it the address of a dq server?")
    }

    fn unreachable(&self, error: &ureq::Error, is_read: bool) -> Failure {
        if !is_read && !is_before_request(error) {
            return outcome_unknown(format!(
                "the server at {} has not answered: {error}",
                self.base
            ));
        }
        let kind = if matches!(error, ureq::Error::BadUri(_)) { "config" } else { "unavailable" };
        let message = format!("the server at {} cannot be reached: {error}", self.base);
        Failure::new(kind, message, "is it running? `dq serve` starts one")
    }

    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.send("GET", path, None, &[], &[], Takes::Short)
    }

    pub(super) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        takes: Takes,
    ) -> Result<T> {
        self.send("POST", path, Some(body), &[], &[], takes)
    }

    fn bulk_request<T: DeserializeOwned>(
        &self,
        queue: &QueueName,
        action: BulkAction,
        mut body: Value,
    ) -> Result<T> {
        if let BulkAction::Reschedule(due) = action {
            body["due"] = text_of(due).into();
        }
        self.post(&format!("{}/jobs:{}", path_of(queue), action.as_str()), &body, Takes::Long)
    }
}

impl Source for Api {
    fn queues(&self) -> Result<Vec<QueueSummary>> {
        self.get("queues")
    }

    fn queue(&self, queue: &QueueName) -> Result<QueueSummary> {
        self.get(&path_of(queue))
    }

    fn jobs(&self, queue: &QueueName, query: &JobQuery) -> Result<JobPage> {
        let filter = &query.filter;
        let order = if query.descending { "desc" } else { "asc" };
        let mut parameters = vec![
            ("state", query.state.to_string()),
            ("limit", query.limit.to_string()),
            ("order", order.to_owned()),
        ];
        for (name, value) in [
            ("key_prefix", filter.key_prefix.clone()),
            ("due_from", filter.due_from.map(|at| at.to_string())),
            ("due_before", filter.due_before.map(|at| at.to_string())),
            ("error", filter.error.clone()),
            ("contains", query.contains.clone()),
            ("after", query.after.clone()),
        ] {
            parameters.extend(value.map(|value| (name, value)));
        }
        let parameters: Vec<String> = parameters
            .iter()
            .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)))
            .collect();
        self.get(&format!("{}/jobs?{}", path_of(queue), parameters.join("&")))
    }

    fn job(&self, queue: &QueueName, target: &Target) -> Result<JobDetail> {
        self.get(&path_of_job(queue, target))
    }

    fn timeline(&self, queue: &QueueName, target: &Target) -> Result<Timeline> {
        self.get(&format!("{}/timeline", path_of_job(queue, target)))
    }

    fn cancel(&self, queue: &QueueName, target: &Target) -> Result<CancelResult> {
        let path = path_of_job(queue, target);
        let action: Action = self.send("DELETE", &path, None, &[], &[], Takes::Short)?;
        Ok(action.result)
    }

    fn reschedule(&self, queue: &QueueName, target: &Target, due: Due) -> Result<Moved> {
        let body = json!({ "due": text_of(due) });
        self.send("PATCH", &path_of_job(queue, target), Some(&body), &[], &[], Takes::Short)
    }

    fn run_now(&self, queue: &QueueName, target: &Target) -> Result<Moved> {
        self.post(&format!("{}:run", path_of_job(queue, target)), &json!({}), Takes::Short)
    }

    fn replay(&self, queue: &QueueName, target: &Target) -> Result<()> {
        let path = format!("{}:replay", path_of_job(queue, target));
        self.post::<Value>(&path, &json!({}), Takes::Short).map(drop)
    }

    fn remove(&self, queue: &QueueName, target: &Target) -> Result<()> {
        let path = format!("{}:remove", path_of_job(queue, target));
        self.post::<Value>(&path, &json!({}), Takes::Short).map(drop)
    }

    fn count(
        &self,
        queue: &QueueName,
        action: BulkAction,
        filter: &JobFilter,
    ) -> Result<BulkCount> {
        self.bulk_request(queue, action, json!({ "filter": filter, "dry_run": true }))
    }

    fn bulk(
        &self,
        queue: &QueueName,
        action: BulkAction,
        filter: &JobFilter,
        expected: Option<u64>,
    ) -> Result<BulkReport> {
        self.bulk_request(queue, action, json!({ "filter": filter, "expected": expected }))
    }

    fn schedule(&self, queue: &QueueName, request: ScheduleRequest) -> Result<ScheduledJob> {
        let body = json!({
            // Base64 keeps the payload byte for byte.
            "payload_base64": STANDARD.encode(&request.payload),
            "content_type": request.content_type,
            "due": text_of(request.due),
            "key": request.key,
            "on_conflict": request.on_conflict,
            "on_running": request.on_running,
            "headers": request.headers,
            "max_attempts": request.max_attempts,
            "remember": request.remember,
        });
        let name = request.idempotency_key.as_deref();
        let headers: Vec<_> = name.map(|name| ("idempotency-key", name)).into_iter().collect();
        // 409 says that the job with this key runs, and has the same body.
        let path = format!("{}/jobs", path_of(queue));
        self.send("POST", &path, Some(&body), &headers, &[409], Takes::Short)
    }

    fn runners(&self) -> Result<Vec<RunnerSummary>> {
        self.get("runners")
    }

    fn check(&self) -> Result<Vec<FindingView>> {
        self.get("check")
    }

    fn pause(&self, queue: &QueueName) -> Result<bool> {
        let path = format!("{}:pause", path_of(queue));
        Ok(self.post::<Changed>(&path, &json!({}), Takes::Short)?.changed)
    }

    fn resume(&self, queue: &QueueName) -> Result<bool> {
        let path = format!("{}:resume", path_of(queue));
        Ok(self.post::<Changed>(&path, &json!({}), Takes::Short)?.changed)
    }

    fn purge(&self, queue: &QueueName, typed: &str) -> Result<u64> {
        let path = format!("{}:purge", path_of(queue));
        let report: BulkReport = self.post(&path, &json!({ "confirm": typed }), Takes::Long)?;
        Ok(report.changed)
    }

    fn close(&self) -> dq_core::Result<()> {
        Ok(())
    }
}

/// A change that the server may have made.
fn outcome_unknown(message: String) -> Failure {
    Failure::new(
        "outcome unknown",
        message,
        "the change may have taken effect: look before you repeat it",
    )
}

/// Whether an error says that there was no connection, so that the server has not seen the request.
fn is_before_request(error: &ureq::Error) -> bool {
    use std::io::ErrorKind as Io;
    match error {
        ureq::Error::BadUri(_)
        | ureq::Error::HostNotFound
        | ureq::Error::InvalidProxyUrl
        | ureq::Error::ConnectionFailed
        | ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => true,
        ureq::Error::Io(error) => matches!(
            error.kind(),
            Io::ConnectionRefused
                | Io::HostUnreachable
                | Io::NetworkUnreachable
                | Io::AddrNotAvailable
        ),
        _ => false,
    }
}

/// Trusts the certificates of the system.
fn tls() -> TlsConfig {
    let trusted = rustls_native_certs::load_native_certs().certs;
    let trusted: Vec<_> = trusted.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    TlsConfig::builder()
        .unversioned_rustls_crypto_provider(provider)
        .root_certs(RootCerts::Specific(Arc::new(trusted)))
        .build()
}

/// Whether an address without its scheme leads to this machine, where no proxy is needed.
fn is_loopback(host: &str) -> bool {
    let authority = host.split('/').next().unwrap_or_default();
    let name = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn path_of(queue: &QueueName) -> String {
    match is_plain(queue.as_str()) {
        true => format!("queues/{queue}"),
        false => format!("queues/base64:{}", URL_SAFE_NO_PAD.encode(queue.as_str())),
    }
}

fn path_of_job(queue: &QueueName, target: &Target) -> String {
    let job = match target {
        Target::Id(id) => id.to_string(),
        Target::Key(key) if is_plain(key.as_str()) => format!("key:{key}"),
        Target::Key(key) => format!("key-base64:{}", URL_SAFE_NO_PAD.encode(key.as_str())),
    };
    format!("{}/jobs/{job}", path_of(queue))
}

/// Whether a name can stand in a path: proxies change some of the others, even percent-encoded.
pub(super) fn is_plain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    name.bytes().all(is_plain)
}

/// A due time as the API reads it.
fn text_of(due: Due) -> String {
    match due {
        Due::At(at) => at.to_string(),
        Due::After(delay) => humantime::format_duration(delay).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use dq_ops::{parse_due, parse_queue, parse_target};

    use super::*;

    #[test]
    fn names_and_due_times_arrive_as_they_were() {
        for name in ["MAIL", "a/../b?c#d", "..", "base64:x", "é", "a:b"] {
            let queue = QueueName::new(name).unwrap();
            let path = path_of(&queue);
            assert!(!path["queues/".len()..].contains(['/', '?', '#', '%', '.']), "{path}");
            assert_eq!(parse_queue(&path["queues/".len()..]).unwrap(), queue);
            let target = parse_target(&format!("key:{name}")).unwrap();
            let path = path_of_job(&QueueName::new("Q").unwrap(), &target);
            assert_eq!(parse_target(&path["queues/Q/jobs/".len()..]).unwrap(), target);
        }
        for due in ["now", "15m", "1h 30m", "2027-01-31T10:00:00.005Z", "1d 1ms"] {
            let due = parse_due(due).unwrap();
            assert_eq!(parse_due(&text_of(due)).unwrap(), due);
        }
    }

    #[test]
    fn only_addresses_of_http_are_taken() {
        for address in ["", "127.0.0.1:7373", "ftp://x", "http://", "https:///"] {
            assert!(Api::new(address, None).is_err(), "{address:?}");
        }
        assert_eq!(
            Api::new("http://[::1]:80/ops/dq/", None).unwrap().base,
            "http://[::1]:80/ops/dq"
        );
        for (host, local) in
            [("127.0.0.1:80/x", true), ("[::1]:80", true), ("localhost", true), ("10.0.0.1", false)]
        {
            assert_eq!(is_loopback(host), local, "{host}");
        }
    }

    fn refusal<T>(result: Result<T>) -> (String, String) {
        match result {
            Err(Failure::Error { kind, message, .. }) => (kind, message),
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("it is taken"),
        }
    }

    #[test]
    fn an_address_with_a_login_is_refused_and_not_printed() {
        for address in ["http://dq:hunter2@127.0.0.1:1", "https://hunter2@h/x", "http://a@hunter2?"]
        {
            let (kind, message) = refusal(Api::new(address, None));
            assert_eq!(kind, "invalid input");
            assert!(!message.contains("hunter2"), "{message}");
        }
        assert!(Api::new("http://127.0.0.1:1/a@b", None).is_ok());
    }

    #[test]
    fn a_change_without_an_answer_may_have_taken_effect() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let api = Api::new(&format!("http://{}", listener.local_addr().unwrap()), None).unwrap();
        let server = thread::spawn(move || {
            for answer in ["", "", "HTTP/1.1 504 T\r\ncontent-length: 0\r\n\r\n"] {
                let mut stream = listener.accept().unwrap().0;
                let mut head = [0; 16];
                stream.read_exact(&mut head).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let queue = QueueName::new("MAIL").unwrap();
        assert_eq!(refusal(api.queues()).0, "unavailable");
        assert_eq!(refusal(api.pause(&queue)).0, "outcome unknown");
        assert_eq!(refusal(api.pause(&queue)).0, "outcome unknown");
        server.join().unwrap();
        // Nobody listens any more.
        assert_eq!(refusal(api.pause(&queue)).0, "unavailable");
    }
}
