//! The HTTP API.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{ADMIN, Fixture, OPERATOR, READER, VIEWER, auth};
use dq_core::{
    Announcement, Backend, Dq, Due, DurationExt, Finding, MemoryBackend, VirtualClock, async_trait,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

#[tokio::test]
async fn a_job_is_scheduled_seen_moved_and_cancelled() {
    let fixture = Fixture::start("").await;
    let body = r#"{"payload":{"order":4711},"key":"order-4711","due":"30m","headers":{"a":"b"}}"#;
    let created = fixture.send(OPERATOR, "POST", "/v1/queues/ORDER/jobs", Some(body)).await;
    assert_eq!(created.status, 201, "{created:?}");
    let id = created.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(created.header("location"), Some(format!("jobs/{id}").as_str()));
    let kept = fixture.send(OPERATOR, "POST", "/v1/queues/ORDER/jobs", Some(body)).await;
    assert_eq!((kept.status, kept.json()["result"].clone()), (200, json!("kept")));

    let job =
        fixture.send(READER, "GET", "/v1/queues/ORDER/jobs/key:order-4711", None).await.json();
    assert_eq!(
        (job["payload"]["json"]["order"].clone(), job["id"].clone()),
        (json!(4711), json!(id))
    );
    let timeline = format!("/v1/queues/ORDER/jobs/{id}/timeline");
    let timeline = fixture.send(VIEWER, "GET", &timeline, None).await.json();
    assert_eq!(timeline["now"]["reason"], json!("not_due"));
    let in_ms = timeline["now"]["in_ms"].as_u64().unwrap();
    assert!((1_200_000..=1_800_000).contains(&in_ms), "{timeline}");

    let path = "/v1/queues/ORDER/jobs/key:order-4711";
    let moved = fixture.send(OPERATOR, "PATCH", path, Some(r#"{"due":"1h"}"#)).await;
    assert_eq!(moved.status, 200, "{moved:?}");
    let page =
        fixture.send(VIEWER, "GET", "/v1/queues/ORDER/jobs?key_prefix=order-&limit=1", None).await;
    assert_eq!(page.json()["jobs"][0]["due"], moved.json()["due"]);
    let cancelled = fixture.send(OPERATOR, "DELETE", path, None).await;
    assert_eq!(cancelled.json(), json!({"result": "cancelled"}));
    let gone = fixture.send(OPERATOR, "DELETE", path, None).await;
    assert_eq!((gone.status, gone.header("content-type")), (404, Some("application/problem+json")));
    assert!(gone.json()["remedy"].is_string());
}

#[tokio::test]
async fn a_job_continues_the_trace_of_the_request() {
    let fixture = Fixture::start("").await;
    let bearer = format!("Bearer {OPERATOR}");
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let own = r#"{"payload":1,"key":"own","headers":{"traceparent":"mine"}}"#;
    for (sent, body, stored) in [
        (trace, r#"{"payload":1,"key":"a"}"#, json!(trace)),
        ("nonsense", r#"{"payload":1,"key":"b"}"#, json!(null)),
        (trace, own, json!("mine")),
    ] {
        let headers = [
            ("authorization", bearer.as_str()),
            ("content-type", "application/json"),
            ("traceparent", sent),
        ];
        let created =
            fixture.raw("POST", "/v1/queues/ORDER/jobs", &headers, body.as_bytes()).await.json();
        let path = format!("/v1/queues/ORDER/jobs/{}", created["id"].as_str().unwrap());
        let job = fixture.send(READER, "GET", &path, None).await.json();
        assert_eq!(job["headers"]["traceparent"], stored, "{job}");
    }
}

#[tokio::test]
async fn a_content_type_among_the_headers_is_refused() {
    let fixture = Fixture::start("").await;
    let body = Some(r#"{"payload":1,"headers":{"content-type":"text/plain"}}"#);
    let refused = fixture.send(OPERATOR, "POST", "/v1/queues/ORDER/jobs", body).await;
    assert_eq!(refused.status, 400);
    assert!(refused.json()["remedy"].as_str().unwrap().contains("content-type"));
}

#[tokio::test]
async fn unknown_parameters_of_a_query_are_refused_by_name() {
    let fixture = Fixture::start("").await;
    fixture.schedule("ORDER", "a", "1", Due::NOW).await;
    for path in [
        "/v1/queues/ORDER/jobs?limt=1",
        "/v1/queues/ORDER/forecast?limt=1",
        "/v1/forecast?limt=1",
        "/v1/audit?limt=1",
        "/v1/schedules/nightly?limt=1",
    ] {
        let refused = fixture.send(ADMIN, "GET", path, None).await;
        assert_eq!(refused.status, 400, "{path}");
        assert!(refused.json()["detail"].as_str().unwrap().contains("limt"), "{refused:?}");
    }
    let jobs = "/v1/queues/ORDER/jobs";
    for (method, path, body) in [
        ("POST", format!("{jobs}:cancel?dry_run=true"), Some(r#"{"all":true}"#)),
        ("POST", format!("{jobs}?due=1h"), Some(r#"{"payload":1}"#)),
        ("DELETE", format!("{jobs}/key:a?dry_run=1"), None),
    ] {
        let refused = fixture.send(ADMIN, method, &path, body).await;
        assert_eq!(refused.status, 400, "{path}: {refused:?}");
    }
    let queue = fixture.send(VIEWER, "GET", "/v1/queues/ORDER", None).await.json();
    assert_eq!(queue["ready"], json!(1), "nothing has changed: {queue}");
}

#[tokio::test]
async fn null_is_a_payload() {
    let fixture = Fixture::start("").await;
    let body = Some(r#"{"payload":null,"key":"a","due":"1h"}"#);
    let created = fixture.send(OPERATOR, "POST", "/v1/queues/TICK/jobs", body).await;
    assert_eq!(created.status, 201, "{created:?}");
    let job = fixture.send(READER, "GET", "/v1/queues/TICK/jobs/key:a", None).await.json();
    assert_eq!(job["payload"]["size"], json!(4), "{job}");
    let body = Some(r#"{"payload":null,"payload_base64":"AP8="}"#);
    assert_eq!(fixture.send(OPERATOR, "POST", "/v1/queues/TICK/jobs", body).await.status, 400);
}

#[tokio::test]
async fn payloads_that_are_not_json_and_names_with_slashes_survive() {
    let fixture = Fixture::start("/ops/dq").await;
    let queue = "/ops/dq/v1/queues/a%2F..%2Fb%3Fc%23d/jobs";
    let body = r#"{"payload_base64":"AP8=","content_type":"application/x-thing","key":"k/1"}"#;
    let created = fixture.send(OPERATOR, "POST", queue, Some(body)).await;
    assert_eq!(created.status, 201, "{created:?}");
    let seen = fixture.send(READER, "GET", &format!("{queue}/key:k%2F1"), None).await.json();
    assert_eq!(
        (&seen["queue"], &seen["payload"]["base64"]),
        (&json!("a/../b?c#d"), &json!("AP8="))
    );
    let encoded = "/ops/dq/v1/queues/base64:YS8uLi9iP2MjZA/jobs/key-base64:ay8x";
    assert_eq!(fixture.send(READER, "GET", encoded, None).await.json(), seen);
    for wrong in [r#"{}"#, r#"{"payload":1,"payload_base64":""}"#, r#"{"payload":1,"dew":"1h"}"#] {
        assert_eq!(fixture.send(OPERATOR, "POST", queue, Some(wrong)).await.status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn a_change_that_selects_nothing_or_says_more_than_it_may_is_refused() {
    let fixture = Fixture::start("").await;
    fixture.schedule("MAIL", "a", "1", Due::After(1.hours())).await;
    let path = "/v1/queues/MAIL/jobs/key:a:run";
    let run = fixture.send(OPERATOR, "POST", path, Some(r#"{"due":"2h"}"#)).await;
    assert_eq!(run.status, 400, "{run:?}");
    let bearer = format!("Bearer {OPERATOR}");
    let headers =
        [("authorization", &*bearer), ("content-type", "application/x-www-form-urlencoded")];
    let form = fixture.raw("POST", "/act", &headers, b"do=bulk:cancel&queue=MAIL").await;
    assert_eq!(form.status, 400, "{form:?}");
    let job = fixture.send(VIEWER, "GET", "/v1/queues/MAIL/jobs/key:a", None).await.json();
    assert_eq!(job["state"], json!("scheduled"), "{job}");
}

/// The router has one route for a resource and its actions, and reports both.
#[tokio::test]
async fn an_address_has_the_methods_that_it_says() {
    let fixture = Fixture::start("/ops/dq").await;
    for (path, allowed) in [
        ("/v1/queues/MAIL", "GET,HEAD"),
        ("/v1/queues/MAIL:stop", "GET,HEAD"),
        ("/v1/queues/MAIL:pause", "POST"),
        ("/v1/queues/MAIL%3Apause", "POST"),
        ("/v1/queues/MAIL/jobs", "GET,HEAD,POST"),
        ("/v1/queues/MAIL/jobs:cancel", "POST"),
        ("/v1/queues/MAIL/jobs/key:a", "GET,HEAD,PATCH,DELETE"),
        ("/v1/queues/MAIL/jobs/key:a:run", "POST"),
        ("/v1/schedules/nightly", "GET,HEAD,PUT,DELETE"),
        ("/v1/schedules/nightly:skip-next", "POST"),
    ] {
        let path = format!("/ops/dq{path}");
        let reply = fixture.send(ADMIN, "OPTIONS", &path, None).await;
        assert_eq!((reply.status, reply.header("allow")), (405, Some(allowed)), "{path}");
        if !allowed.contains("POST") {
            // The body fits no action.
            let reply = fixture.send(ADMIN, "POST", &path, Some(r#"{"queue":"MAIL"}"#)).await;
            assert_eq!((reply.status, reply.header("allow")), (405, Some(allowed)), "{path}");
            let remedy = reply.json()["remedy"].as_str().unwrap().to_owned();
            assert!(remedy.contains("a POST goes to one of :"), "{remedy}");
        }
    }
    // A name may end like an action.
    assert_eq!(fixture.send(ADMIN, "GET", "/ops/dq/v1/queues/MAIL:pause", None).await.status, 404);
}

#[tokio::test]
async fn a_store_that_is_away_is_503_and_to_be_retried() {
    let fixture = Fixture::start("").await;
    fixture.dq.close().await.unwrap();
    let reply = fixture.send(VIEWER, "GET", "/v1/queues", None).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")), "{reply:?}");
    assert_eq!(reply.json()["title"], json!("closed"));
}

#[tokio::test]
async fn the_document_describes_every_route() {
    let fixture = Fixture::start("").await;
    let document = fixture.send(VIEWER, "GET", "/openapi.json", None).await.json();
    let paths = document["paths"].as_object().unwrap();
    let mut ids = BTreeSet::new();
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id), "{id} is not only {method} {path}");
            for (status, response) in operation["responses"].as_object().unwrap() {
                assert!(response["description"].is_string(), "{method} {path}: {status}");
            }
            let error = &operation["responses"]["default"]["content"]["application/problem+json"];
            assert!(error.is_object(), "{method} {path}");
        }
    }
    let schemes = &document["components"]["securitySchemes"];
    for requirement in document["security"].as_array().unwrap() {
        let name = requirement.as_object().unwrap().keys().next().unwrap();
        assert_eq!(schemes[name]["type"], json!("http"), "{name}: {schemes}");
    }
    assert_eq!(document["security"].as_array().unwrap().len(), 2);
    // Every reference resolves to a schema.
    let text = document.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
}

/// Replaces each path parameter with `{}`.
fn operation(method: &str, path: &str) -> String {
    let path = path.split('?').next().unwrap();
    let parts = path.split('{').map(|part| part.split_once('}').map_or(part, |(_, rest)| rest));
    format!("{method} {}", parts.collect::<Vec<_>>().join("{}"))
}

/// Parses the guide's table. A cell may hold several operations; later ones repeat the first one's
/// method and path prefix: "`POST /a:b`, `:c`" or "`GET /a`, `…/b`".
fn operations_of_the_guide() -> BTreeSet<String> {
    let mut operations = BTreeSet::new();
    let guide = include_str!("../../docs/guide/http-api.md");
    let cells = guide.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    for cell in cells.filter(|cell| cell.contains(" /")) {
        let (mut methods, mut first) = (Vec::new(), "");
        for code in cell.split('`').skip(1).step_by(2) {
            let path = match code.split_once(' ') {
                Some((method, path)) => {
                    methods.push(method);
                    path
                }
                None if code.starts_with(char::is_uppercase) => {
                    methods.push(code);
                    continue;
                }
                None => code,
            };
            let path = if let Some(rest) = path.strip_prefix('…') {
                format!("{first}{rest}")
            } else if path.starts_with(':') {
                format!("{}{path}", first.rsplit_once(':').unwrap().0)
            } else {
                first = path;
                path.to_owned()
            };
            operations.extend(methods.iter().map(|method| operation(method, &path)));
        }
    }
    operations
}

#[tokio::test]
async fn the_guide_lists_the_operations_of_the_document() {
    let fixture = Fixture::start("").await;
    let document = fixture.send(VIEWER, "GET", "/openapi.json", None).await.json();
    let operations: BTreeSet<_> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            let methods = item.as_object().unwrap().keys();
            methods.map(|method| operation(&method.to_uppercase(), path))
        })
        .collect();
    assert_eq!(operations_of_the_guide(), operations);
}

#[tokio::test]
async fn a_list_is_no_body() {
    let fixture = Fixture::start("").await;
    fixture.schedule("MAIL", "stays", "1", Due::After(1.hours())).await;
    for (method, path, body) in [
        ("POST", "/v1/queues/MAIL/jobs", json!([{"to": "ann"}])),
        ("PATCH", "/v1/queues/MAIL/jobs/key:stays", json!(["2h"])),
        ("POST", "/v1/queues/MAIL:purge", json!(["MAIL"])),
    ] {
        let reply = fixture.send(ADMIN, method, path, Some(&body.to_string())).await;
        assert_eq!(reply.status, 400, "{method} {path}");
    }
    assert_eq!(fixture.dq.queue("MAIL").unwrap().stats().await.unwrap().stored(), 1);
}

/// A store whose check waits for a permit.
#[derive(Debug)]
struct SlowCheck(MemoryBackend, Semaphore);

#[async_trait]
impl dq_core::Layer for SlowCheck {
    fn inner(&self) -> &dyn Backend {
        &self.0
    }

    async fn check(&self) -> Vec<Finding> {
        self.1.acquire().await.unwrap().forget();
        Backend::check(&self.0).await
    }
}

#[tokio::test]
async fn the_page_of_a_check_that_takes_long_says_so_and_then_has_the_result() {
    let clock = Arc::new(VirtualClock::default());
    let store = Arc::new(SlowCheck(MemoryBackend::new(clock), Semaphore::new(0)));
    let dq = Dq::builder().backend(store.clone()).connect().await.unwrap();
    let fixture = Fixture::of(dq, tempfile::tempdir().unwrap()).await;
    let authorization = format!("Bearer {VIEWER}");
    let page =
        async || fixture.raw("GET", "/check", &[("authorization", &authorization)], b"").await;
    for _ in 0..2 {
        let running = page().await;
        assert_eq!((running.status, running.header("refresh")), (200, Some("1")));
        assert!(running.body.contains("takes longer than this page waits"), "{running:?}");
    }
    // All pages share one check, so one permit suffices.
    store.1.add_permits(1);
    let pages = tokio::join!(
        fixture.send(VIEWER, "GET", "/check", None),
        fixture.send(VIEWER, "GET", "/check", None)
    );
    for page in [pages.0, pages.1] {
        assert!(page.body.contains("no problem that you should know of"), "{page:?}");
    }
}

#[tokio::test]
async fn the_page_of_a_quick_check_shows_a_new_one_each_time() {
    let clock = Arc::new(VirtualClock::default());
    let store = Arc::new(SlowCheck(MemoryBackend::new(clock), Semaphore::new(2)));
    let dq = Dq::builder().backend(store.clone()).connect().await.unwrap();
    let fixture = Fixture::of(dq, tempfile::tempdir().unwrap()).await;
    fixture.send(VIEWER, "GET", "/check", None).await;
    // On a busy machine, the first check may be slow, and so kept for a moment.
    while store.1.available_permits() > 0 {
        fixture.send(VIEWER, "GET", "/check", None).await;
    }
}

#[tokio::test]
async fn a_missed_lateness_objective_is_marked_with_its_cause() {
    let fixture = Fixture::start("").await;
    let announce = async |late: u64| {
        let info = format!(
            r#"{{"format":1,"host":"h","pid":1,"version":"0.1.0","started":0,"stopping":false,
            "concurrency":4,"running":0,"skew_ms":0,"omitted_queues":0,"queues":[{{"queue":"MAIL",
            "concurrency":4,"running":0,"lateness":[],"run_time":[],"objective":{{"objective":
            "99% < 100ms","in_time":990,"late":{late},"cause":"slots_full"}}}}]}}"#
        );
        let announcement = Announcement::new("web-1", info, 1.hours());
        fixture.store.announce(announcement).await.unwrap();
    };
    let get = async |path: &str| fixture.send(VIEWER, "GET", path, None).await;
    announce(10).await;
    let queue = get("/v1/queues/MAIL").await.json();
    let objective = json!({"objective": "99% < 100ms", "missed": false, "in_time": 990, "late": 10,
        "waiting": 0, "cause": "slots_full"});
    assert_eq!(queue["objective"], objective);
    assert!(get("/metrics").await.body.contains(r#"dq_queue_lateness_missed{queue="MAIL"} 0"#));
    let missed = async || {
        let findings = get("/v1/check").await.json().as_array().unwrap().clone();
        let is_missed = |finding: &Value| finding["code"] == json!("lateness.objective");
        findings.into_iter().find(is_missed)
    };
    assert_eq!(missed().await, None);
    assert!(!get("/").await.body.contains("objective missed"));
    let page = get("/queue?name=MAIL").await.body;
    assert!(page.contains("99% &#60; 100ms · met · in time 990 · late 10"), "{page}");

    announce(11).await;
    assert_eq!(get("/v1/queues/MAIL").await.json()["objective"]["missed"], json!(true));
    assert!(get("/metrics").await.body.contains(r#"dq_queue_lateness_missed{queue="MAIL"} 1"#));
    let finding = missed().await.expect("the objective is missed");
    assert!(finding["cause"].as_str().unwrap().contains("all slots are busy"), "{finding}");
    for (path, mark) in [
        ("/", r#"title="all slots are busy">objective missed</span>"#),
        ("/?lang=zh", r#"title="槽位全部占用">未达延迟目标</span>"#),
        ("/queue?name=MAIL", "objective missed: all slots are busy · in time 990 · late 11"),
        ("/check", "jobs of queue MAIL are late: all slots are busy"),
    ] {
        let page = get(path).await.body;
        assert!(page.contains(mark), "{path}: {page}");
    }
}

#[tokio::test]
async fn metrics_are_gauges_of_the_store() {
    let fixture = Fixture::start("").await;
    fixture.schedule("A\"\\", "a", "1", Due::NOW).await;
    fixture.pass(2.seconds());
    let metrics = fixture.send(VIEWER, "GET", "/metrics", None).await.body;
    assert!(metrics.contains(r#"dq_queue_jobs{queue="A\"\\",state="ready"} 1"#), "{metrics}");
    let oldest = metrics
        .lines()
        .find_map(|line| line.strip_prefix(r#"dq_oldest_ready_seconds{queue="A\"\\"} "#));
    let oldest: f64 = oldest.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap();
    assert!((2.0..600.0).contains(&oldest), "{metrics}");
}

#[tokio::test]
async fn a_change_of_many_jobs_says_which_ones() {
    let fixture = Fixture::start("").await;
    fixture.schedule("MAIL", "a", "1", Due::After(1.hours())).await;
    let cancel = async |body: Option<&str>| {
        fixture.send(OPERATOR, "POST", "/v1/queues/MAIL/jobs:cancel", body).await
    };
    for body in [None, Some("{}"), Some(r#"{"filter":{}}"#), Some(r#"{"filter":{"error":null}}"#)] {
        assert_eq!(cancel(body).await.status, 400, "{body:?}");
    }
    assert_eq!(cancel(Some(r#"{"filter":{"key_prefix":""}}"#)).await.status, 400);
    assert_eq!(cancel(Some(r#"{"filter":{"key_prefix":"a"},"all":true}"#)).await.status, 400);
    assert_eq!(cancel(Some(r#"{"dry_run":true}"#)).await.json()["matching"], json!(1));
    assert_eq!(cancel(Some(r#"{"expected":0}"#)).await.status, 409);
    assert_eq!(cancel(Some(r#"{"all":true}"#)).await.json(), json!({"changed": 1}));
}

#[tokio::test]
async fn an_empty_history_names_the_setting_unless_a_filter_is_the_reason() {
    let fixture = Fixture::start("").await;
    fixture.schedule("MAIL", "ann", "{}", Due::After(1.hours())).await;
    for (lang, of_setting, of_filter) in [
        ("en", "No ended job is remembered.", "No job matches."),
        ("zh", "history", "没有匹配的任务。"),
    ] {
        let page = format!("/jobs?queue=MAIL&state=ended&lang={lang}");
        let all = fixture.send(VIEWER, "GET", &page, None).await.body;
        assert!(all.contains(of_setting) && !all.contains(of_filter), "{all}");
        let filtered = fixture.send(VIEWER, "GET", &format!("{page}&find=zzz"), None).await.body;
        assert!(filtered.contains(of_filter), "{filtered}");
        assert!(!filtered.contains("No ended job is remembered."), "{filtered}");
    }
}

#[tokio::test]
async fn the_page_of_a_change_warns_of_jobs_outside_of_the_group() {
    let fixture = Fixture::start("").await;
    for (key, error) in [("a", "E1"), ("b", "charge timeout 3"), ("c", "a charge timeout 4 x")] {
        fixture.dead("MAIL", key, error).await;
    }
    let dead = fixture.send(OPERATOR, "GET", "/dead?lang=en", None).await.body;
    assert_eq!(dead.matches("do=remove").count(), 2, "a short text has no buttons: {dead}");
    assert_eq!(dead.matches("group=1").count(), 4, "{dead}");
    let page = async |group: &str| {
        let path = format!("/bulk?queue=MAIL&do=remove&error=charge%20timeout{group}&lang=en");
        fixture.send(OPERATOR, "GET", &path, None).await.body
    };
    assert!(page("&group=1").await.contains("more jobs than the group"));
    assert!(!page("&group=2").await.contains("more jobs than the group"));
    assert!(!page("").await.contains("more jobs than the group"));
}

async fn open_events(address: SocketAddr, prefix: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET {prefix}/v1/events HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {VIEWER}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Reads events until one contains the text, and reconnects when the response ends.
async fn read_events(address: SocketAddr, prefix: &str, text: &str) -> String {
    let mut read = String::new();
    let mut stream = open_events(address, prefix).await;
    let waiting = async {
        while !read.contains(text) {
            let mut part = [0; 4096];
            match stream.read(&mut part).await.unwrap() {
                0 => stream = open_events(address, prefix).await,
                length => read += &String::from_utf8_lossy(&part[..length]),
            }
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(120), waiting).await;
    waited.unwrap_or_else(|_| panic!("{text:?} does not arrive"));
    read
}

#[tokio::test]
async fn changes_arrive_as_events() {
    let fixture = Fixture::start("/ops/dq").await;
    let read = async |text| read_events(fixture.address, "/ops/dq", text).await;
    let head = read("event: overview").await.to_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(head.contains("content-type: text/event-stream"), "{head}");
    fixture.schedule("LATER", "a", "1", Due::After(1.hours())).await;
    read("\"LATER\"").await;
}

/// An open page must not hold a server that waits for all responses.
#[tokio::test]
async fn a_graceful_shutdown_does_not_wait_for_ever_for_a_page() {
    let fixture = Fixture::start("/ops/dq").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let router = dq_web::router(fixture.ops.clone(), auth());
    let server = axum::serve(listener, router).with_graceful_shutdown(async move {
        let _ = stopped.await;
    });
    let server = tokio::spawn(server.into_future());
    let mut stream = open_events(address, "").await;
    assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0, "the response has begun");
    stop.send(()).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(120), server).await;
    ended.expect("the response ends by itself").unwrap().unwrap();
}
