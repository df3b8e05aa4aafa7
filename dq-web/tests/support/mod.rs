//! A server with a memory store on a virtual clock, and an HTTP client that also sends requests
//! that other clients refuse to send.
#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod browser;
pub(crate) mod events;
pub(crate) mod layout;
pub(crate) mod sample;

use std::net::SocketAddr;
use std::sync::Arc;

use dq_core::{
    Announcement, Backend, Checked, ClaimParams, Clock, DeadKind, DeadReason, Dq, Due, DurationExt,
    HistoryLimit, HistoryLimits, JobId, LeasedJob, MemoryBackend, QueueName, Settlement,
    SystemClock, Verdict, VirtualClock, Want,
};
use dq_ops::{Actor, Ops, Role, ScheduleRequest};
use dq_postgres as _;
use dq_rabbit as _;
use dq_redis as _;
use dq_sqlite as _;
use dq_web::Auth;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const WORKER: &str = "worker-0123456789";
pub(crate) const VIEWER: &str = "viewer-0123456789";
pub(crate) const READER: &str = "reader-0123456789";
pub(crate) const OPERATOR: &str = "operator-0123456789";
pub(crate) const ADMIN: &str = "admin-0123456789";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Axum,
    Actix,
}

impl Server {
    const OWN: Self = match env!("CARGO_CRATE_NAME").as_bytes() {
        b"actix" => Self::Actix,
        _ => Self::Axum,
    };

    /// Serves the router under `prefix`, or at the root if it is empty.
    async fn serve(self, prefix: &str, router: axum::Router) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        match self {
            Self::Axum => {
                let router = match prefix {
                    "" => router,
                    prefix => axum::Router::new().nest_service(prefix, router),
                };
                tokio::spawn(async move { axum::serve(listener, router).await });
            }
            Self::Actix => serve_in_actix(prefix, router, listener.into_std().unwrap()),
        }
        address
    }
}

#[cfg(feature = "actix")]
fn serve_in_actix(prefix: &str, router: axum::Router, listener: std::net::TcpListener) {
    let prefix = prefix.to_owned();
    let app = move || {
        let dashboard = dq_web::actix::scope(&prefix, router.clone());
        actix_web::App::new().service(dashboard)
    };
    let server = actix_web::HttpServer::new(app).workers(2).disable_signals();
    tokio::spawn(server.listen(listener).unwrap().run());
}

#[cfg(not(feature = "actix"))]
fn serve_in_actix(_: &str, _: axum::Router, _: std::net::TcpListener) {
    panic!("run the tests with all features");
}

pub(crate) struct Fixture {
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) store: Arc<Checked>,
    _directory: TempDir,
    pub(crate) dq: Dq,
    pub(crate) ops: Ops,
    pub(crate) address: SocketAddr,
}

pub(crate) fn auth() -> Auth {
    let queues = ["MAIL", "SMS"].map(|queue| QueueName::new(queue).unwrap());
    let auth = Auth::token(Actor::worker("willi", queues), WORKER).unwrap();
    let auth = auth.and_token(Actor::new("vera", Role::Viewer), VIEWER).unwrap();
    let auth = auth.and_token(Actor::new("rita", Role::Reader), READER).unwrap();
    let auth = auth.and_token(Actor::new("otto", Role::Operator), OPERATOR).unwrap();
    auth.and_token(Actor::new("ada", Role::Admin), ADMIN).unwrap()
}

impl Fixture {
    /// Serves a dashboard under `prefix`, or at the root if it is empty.
    pub(crate) async fn start(prefix: &str) -> Self {
        Self::start_in(Server::OWN, prefix).await
    }

    pub(crate) async fn start_in(server: Server, prefix: &str) -> Self {
        let clock = Arc::new(VirtualClock::new(SystemClock.now()));
        let history = HistoryLimits::all(HistoryLimit::default());
        let store = MemoryBackend::with_history(Arc::clone(&clock) as Arc<dyn Clock>, history);
        let builder = Dq::builder().backend(Arc::new(store)).clock(Arc::clone(&clock) as _);
        let dq = builder.connect().await.unwrap();
        Self::serve(server, prefix, dq, clock, tempfile::tempdir().unwrap()).await
    }

    /// Serves a dashboard for a store with its own clock, at the root.
    pub(crate) async fn of(dq: Dq, directory: TempDir) -> Self {
        let clock = Arc::new(VirtualClock::default());
        Self::serve(Server::OWN, "", dq, clock, directory).await
    }

    async fn serve(
        server: Server,
        prefix: &str,
        dq: Dq,
        clock: Arc<VirtualClock>,
        directory: TempDir,
    ) -> Self {
        let store = Arc::clone(dq.backend());
        let ops = Ops::new(dq.clone());
        let router = dq_web::router(ops.clone(), auth());
        let address = server.serve(prefix, router).await;
        Self { clock, store, _directory: directory, dq, ops, address }
    }

    /// Returns another server's fixture, of the same store.
    pub(crate) fn beside(&self, ops: Ops, address: SocketAddr) -> Self {
        let (clock, store, dq) = (self.clock.clone(), self.store.clone(), self.dq.clone());
        Self { clock, store, _directory: tempfile::tempdir().unwrap(), dq, ops, address }
    }

    pub(crate) async fn schedule(&self, queue: &str, key: &str, payload: &str, due: Due) -> JobId {
        let mut request = ScheduleRequest::new(payload.to_owned());
        (request.key, request.due) = (Some(key.to_owned()), due);
        request.headers.insert("origin".to_owned(), "<b>header</b>".to_owned());
        let session = self.ops.session(Actor::new("fixture", Role::Admin));
        session.schedule(&QueueName::new(queue).unwrap(), request).await.unwrap().id
    }

    pub(crate) async fn claim(&self, queue: &str, worker: &str) -> Vec<LeasedJob> {
        let wants = [Want::new(QueueName::new(queue).unwrap(), 100, 10.minutes())];
        let params = ClaimParams::new(&wants, 100, worker);
        self.store.claim(params).await.unwrap().jobs
    }

    pub(crate) async fn settle(&self, job: &LeasedJob, verdict: Verdict) {
        self.store.settle(&[Settlement::new(job.lease(), verdict)]).await.unwrap();
    }

    pub(crate) async fn dead(&self, queue: &str, key: &str, reason: &str) -> JobId {
        let id = self.schedule(queue, key, "{}", Due::NOW).await;
        for job in self.claim(queue, "web-1").await {
            let reason = DeadReason::new(DeadKind::Exhausted, reason);
            self.settle(&job, Verdict::Dead { reason, failed: true }).await;
        }
        id
    }

    /// Announces a runner for a minute: an idle one without queues, but with these fields.
    pub(crate) async fn announce(&self, name: &str, fields: Value) {
        let mut info = json!({
            "format": 1, "host": "h", "pid": 1, "version": "0.1.0", "started": 0,
            "stopping": false, "concurrency": 4, "running": 0, "skew_ms": 0, "omitted_queues": 0,
            "queues": [],
        });
        for (field, value) in fields.as_object().unwrap() {
            info[field] = value.clone();
        }
        let announcement = Announcement::new(name, info.to_string(), 60.seconds());
        self.store.announce(announcement).await.unwrap();
    }

    pub(crate) async fn get(&self, token: &str, path: &str) -> Reply {
        self.send(token, "GET", path, None).await
    }

    /// Sends a request, with JSON if it has a body, and repeats it while the page is incomplete.
    pub(crate) async fn send(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: Option<&str>,
    ) -> Reply {
        let content_type = body.map(|_| "application/json");
        let body = body.unwrap_or_default();
        loop {
            let reply = self.send_as(token, method, path, content_type, body).await;
            if reply.header("refresh").is_none() {
                return reply;
            }
        }
    }

    pub(crate) async fn submit(&self, token: &str, fields: &str) -> Reply {
        let content_type = Some("application/x-www-form-urlencoded");
        self.send_as(token, "POST", "/act", content_type, fields).await
    }

    pub(crate) async fn send_as(
        &self,
        token: &str,
        method: &str,
        path: &str,
        content_type: Option<&str>,
        body: &str,
    ) -> Reply {
        let bearer = format!("Bearer {token}");
        let content_type = content_type.map(|value| ("content-type", value));
        let headers: Vec<_> =
            content_type.into_iter().chain([("authorization", &*bearer)]).collect();
        self.raw(method, path, &headers, body).await
    }

    /// Sends a request with exactly these headers, plus host, length and connection.
    pub(crate) async fn raw(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Reply {
        self.exchange(method, path, headers, body.len(), body).await
    }

    /// Sends a request that announces this body length.
    pub(crate) async fn exchange(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        length: usize,
        body: &str,
    ) -> Reply {
        let mut text = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {length}\r\n",
            self.address
        );
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(format!("{text}\r\n{body}").as_bytes()).await.unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await.unwrap();
        Reply::parse(&String::from_utf8_lossy(&reply))
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or("0");
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_lowercase(), value.trim().to_owned()))
        };
        let status = status.parse().unwrap_or(0);
        Self { status, headers: lines.filter_map(header).collect(), body: body.to_owned() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
