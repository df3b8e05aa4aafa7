//! A proxy between workers and `dq serve`, which records what workers were told about leases.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use dq::{JobId, QueueName, Timestamp};
use dq_testkit::trace::{
    Interval, ObservedCall, ObservedVerdict, ScheduleAnswer, Trace, TraceEvent,
};
use serde_json::Value;
use tokio::net::TcpListener;

use crate::server::request;

/// The lease that all workers ask for.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// The proxy's address, and what it has recorded. The store's clock must be this machine's.
pub(crate) struct Recorder {
    pub(crate) address: String,
    server: String,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    events: Vec<TraceEvent>,
    leases: HashMap<String, (JobId, u64)>,
    /// The event of each settlement, by its text. The server promises to answer a repeated one like
    /// the first.
    settlements: HashMap<String, usize>,
    repeated: HashSet<usize>,
}

impl Recorder {
    pub(crate) async fn start(server: &str) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let recorder =
            Arc::new(Self { address, server: server.to_owned(), calls: Mutex::default() });
        let router = Router::new().fallback(forward).with_state(Arc::clone(&recorder));
        tokio::spawn(async { axum::serve(listener, router).await });
        recorder
    }

    /// Records that the job was scheduled by a call that began at `invoked`.
    pub(crate) fn scheduled(
        &self,
        invoked: u64,
        (job, queue): (&str, &str),
        payload: &Value,
        delay: u64,
    ) {
        let not_before = millis(invoked) + Duration::from_millis(delay);
        let call = ObservedCall::Schedule {
            job: job.parse().unwrap(),
            queue: QueueName::new(queue).unwrap(),
            key: None,
            group: None,
            detach: false,
            remember: Duration::ZERO,
            not_before,
            payload: Some(bytes(payload)),
            answer: Some(ScheduleAnswer::Created),
        };
        let interval = interval(invoked, nanos());
        self.calls.lock().unwrap().events.push(TraceEvent { interval, call });
    }

    pub(crate) fn trace(&self) -> Trace {
        Trace::new(self.calls.lock().unwrap().events.clone())
    }

    /// Records the calls of a request, without answers. Returns their events.
    fn invoked(&self, path: &str, body: &Value) -> Vec<usize> {
        let mut calls = self.calls.lock().unwrap();
        let at = nanos();
        match path {
            "/v1/leases:renew" => {
                let leases = body["leases"].as_array().unwrap().iter().map(text);
                leases.map(|lease| calls.renew(at, lease)).collect()
            }
            "/v1/leases:settle" => {
                let results = body["results"].as_array().unwrap().iter();
                results.map(|result| calls.settle(at, result)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn answered(&self, events: &[usize], answer: &Value) {
        let mut calls = self.calls.lock().unwrap();
        let returned = nanos();
        for job in list(answer, "jobs") {
            calls.claim(returned, job);
        }
        let answers = list(answer, "leases").iter().chain(list(answer, "results"));
        for (event, answer) in events.iter().zip(answers) {
            let is_first = !calls.repeated.contains(event);
            let TraceEvent { interval: interval_of_call, call } = &mut calls.events[*event];
            let succeeded = answer["result"] == "renewed" || answer["result"] == "settled";
            match call {
                ObservedCall::Renew { held, until, .. } => {
                    *held = Some(succeeded);
                    if succeeded {
                        *until = time(&answer["until"]);
                    }
                }
                // If a repeated call says that the lease is lost, an earlier one may have settled
                // it.
                ObservedCall::Settle { accepted, .. } if succeeded || is_first => {
                    *accepted = Some(succeeded);
                }
                _ => {}
            }
            *interval_of_call = interval(interval_of_call.invoked, returned);
        }
    }
}

impl Calls {
    fn claim(&mut self, returned: u64, job: &Value) {
        let (id, token) = (text(&job["id"]).parse().unwrap(), text(&job["token"]).parse().unwrap());
        self.leases.insert(text(&job["lease"]).to_owned(), (id, token));
        let until = time(&job["lease_ends"]);
        let now = until - LEASE;
        let call = ObservedCall::Claim {
            now,
            job: id,
            due: time(&job["due"]),
            attempts: u32::try_from(job["attempt"].as_u64().unwrap() - 1).unwrap(),
            payload: bytes(&job["payload"]),
            token,
            until,
        };
        // The request may have waited for long before.
        let invoked = u64::try_from(now.as_millis()).unwrap() * 1_000_000;
        self.events.push(TraceEvent { interval: interval(invoked, returned), call });
    }

    fn renew(&mut self, at: u64, lease: &str) -> usize {
        let (job, token) = self.leases[lease];
        let until = millis(at) + LEASE;
        let call = ObservedCall::Renew { job, token, until, held: None };
        self.unanswered(at, call)
    }

    fn settle(&mut self, at: u64, result: &Value) -> usize {
        let text_of_call = result.to_string();
        if let Some(event) = self.settlements.get(&text_of_call) {
            self.repeated.insert(*event);
            return *event;
        }
        let (job, token) = self.leases[text(&result["lease"])];
        let verdict = match text(&result["outcome"]) {
            "done" => ObservedVerdict::Done,
            "failed" => ObservedVerdict::Retry(millis(at)),
            "again" => ObservedVerdict::Again(millis(at), bytes(&result["payload"])),
            "released" => ObservedVerdict::Release,
            other => panic!("no worker says {other}"),
        };
        let call = ObservedCall::Settle { job, token, verdict, accepted: None };
        let event = self.unanswered(at, call);
        self.settlements.insert(text_of_call, event);
        event
    }

    /// A call without an answer may take effect at any later time.
    fn unanswered(&mut self, at: u64, call: ObservedCall) -> usize {
        self.events.push(TraceEvent { interval: interval(at, u64::MAX), call });
        self.events.len() - 1
    }
}

/// Forwards a request, unless the worker closes its connection before the answer.
async fn forward(State(recorder): State<Arc<Recorder>>, incoming: Request) -> Response {
    let path = incoming.uri().path().to_owned();
    let Ok(body) = to_bytes(incoming.into_body(), usize::MAX).await else {
        return StatusCode::BAD_REQUEST.into_response(); // The worker was killed meanwhile.
    };
    let body: Value = serde_json::from_slice(&body).unwrap();
    let events = recorder.invoked(&path, &body);
    match request(&recorder.server, "POST", &path, "", &body).await {
        Ok((status, answer)) => {
            recorder.answered(&events, &answer);
            let status = StatusCode::from_u16(status).unwrap();
            if answer.is_null() {
                status.into_response()
            } else {
                (status, Json(answer)).into_response()
            }
        }
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    }
}

/// Nanoseconds since 1970, which also order the calls.
pub(crate) fn nanos() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

fn millis(nanos: u64) -> Timestamp {
    Timestamp::from_millis(i64::try_from(nanos / 1_000_000).unwrap())
}

fn interval(invoked: u64, returned: u64) -> Interval {
    Interval { invoked, returned, at: millis(invoked), returned_at: millis(returned) }
}

fn time(value: &Value) -> Timestamp {
    dq_ops::parse_timestamp(text(value)).unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

fn list<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}

fn bytes(value: &Value) -> Bytes {
    serde_json::to_vec(value).unwrap().into()
}
