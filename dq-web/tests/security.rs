use crate::support::{ADMIN, Fixture, OPERATOR, READER, VIEWER};
use dq_core::{
    Announcement, Backend, BrowseParams, DeadKind, DeadReason, Due, DurationExt, JobState, Verdict,
};

const SECRET: &str = "S3CRET-4111";

const READS: [&str; 33] = [
    "/",
    "/queue?name=MAIL",
    "/jobs?queue=MAIL",
    "/jobs?queue=MAIL&state=dead&error=boom",
    "/job?queue=MAIL&key=waiting",
    "/bulk?queue=MAIL&do=cancel",
    "/dead",
    "/runners",
    "/check",
    "/audit",
    "/assets/style.css",
    "/assets/app.js",
    "/assets/icon.svg",
    "/openapi.json",
    "/metrics",
    "/v1/overview",
    "/v1/queues",
    "/v1/queues/MAIL",
    "/v1/queues/MAIL/jobs?state=scheduled",
    "/v1/queues/MAIL/jobs/key:waiting",
    "/v1/queues/MAIL/jobs/key:waiting/timeline",
    "/v1/queues/MAIL/dead",
    "/v1/queues/MAIL/forecast",
    "/v1/runners",
    "/v1/check",
    "/v1/audit",
    "/schedules",
    "/forecast",
    "/schedule?name=report",
    "/forecast?window=7d",
    "/v1/schedules",
    "/v1/schedules/report",
    "/v1/forecast",
];

const WRITES: [(&str, &str, &str); 21] = [
    ("POST", "/v1/queues/MAIL/jobs", r#"{"payload":1}"#),
    ("POST", "/v1/queues/MAIL/jobs:schedule", r#"{"jobs":[{"payload":1}]}"#),
    ("POST", "/v1/queues/MAIL:pause", ""),
    ("POST", "/v1/queues/MAIL:purge", r#"{"confirm":"MAIL"}"#),
    ("POST", "/v1/queues/MAIL/jobs:cancel", r#"{"all":true}"#),
    ("POST", "/v1/queues/MAIL/jobs:replay", r#"{"all":true}"#),
    ("POST", "/v1/queues/MAIL/jobs:remove", r#"{"all":true}"#),
    ("PATCH", "/v1/queues/MAIL/jobs/key:waiting", r#"{"due":"9h"}"#),
    ("DELETE", "/v1/queues/MAIL/jobs/key:waiting", ""),
    ("POST", "/v1/queues/MAIL/jobs/key:waiting:run", ""),
    ("POST", "/act", "do=cancel&queue=MAIL&job=key:waiting"),
    ("POST", "/act", "do=limit&queue=MAIL&max_running=3"),
    ("PUT", "/v1/schedules/report", r#"{"queue":"MAIL","every":"1h"}"#),
    ("DELETE", "/v1/schedules/report", ""),
    ("POST", "/v1/schedules/report:pause", ""),
    ("POST", "/v1/schedules/report:resume", ""),
    ("POST", "/v1/schedules/report:skip-next", ""),
    ("POST", "/v1/schedules/report:run", ""),
    (
        "POST",
        "/v1/schedules/report:backfill",
        r#"{"after":"2026-03-01T00:00:00Z","until":"2026-03-04T00:00:00Z"}"#,
    ),
    ("POST", "/v1/simulate", "{}"),
    ("POST", "/act", "do=schedule:remove&name=report"),
];

async fn fixture() -> Fixture {
    let fixture = Fixture::start("").await;
    let payload = format!("{{\"card\":\"{SECRET}\"}}");
    fixture.schedule("MAIL", "waiting", &payload, Due::After(1.hours())).await;
    fixture.schedule("MAIL", "failing", &payload, Due::NOW).await;
    for job in fixture.claim("MAIL", "w").await {
        let reason = DeadReason::new(DeadKind::Exhausted, "boom");
        fixture.settle(&job, Verdict::Dead { reason, failed: true }).await;
    }
    let schedule = format!(r#"{{"queue":"REPORT","cron":"30 2 * * *","payload":"{SECRET}"}}"#);
    let put = fixture.send(OPERATOR, "PUT", "/v1/schedules/report", Some(&schedule)).await;
    assert_eq!(put.status, 200, "{put:?}");
    fixture
}

/// Prints the store's counts and jobs, to see whether a request changed them.
async fn dump(fixture: &Fixture) -> String {
    let queues = fixture.store.stats(&[]).await.unwrap();
    let mut text = format!("{queues:?}");
    for stats in queues {
        use JobState::{Dead, Ended, Ready, Running, Scheduled};
        for state in [Scheduled, Ready, Running, Dead, Ended] {
            let params = BrowseParams::new(&stats.queue, state).payloads(true).limit(1_000);
            text += &format!("{:?}", fixture.store.browse(params).await.unwrap());
        }
    }
    text
}

fn content_type(path: &str, body: &str) -> &'static str {
    match path {
        "/act" => "application/x-www-form-urlencoded",
        _ if body.is_empty() => "text/plain",
        _ => "application/json",
    }
}

#[tokio::test]
async fn without_authentication_every_address_is_401() {
    let fixture = fixture().await;
    let before = dump(&fixture).await;
    let others = ["/v1/events", "/nothing", "/v1/nothing", "//", "/assets/../v1/queues"];
    let no_credentials: &[_] = &[];
    let wrong_token: &[_] = &[("authorization", "Bearer wrong")];
    let no_user: &[_] = &[("authorization", "Basic Og==")];
    for path in READS.into_iter().chain(others) {
        for headers in [no_credentials, wrong_token, no_user] {
            let reply = fixture.raw("GET", path, headers, "").await;
            assert_eq!(reply.status, 401, "{path}");
            assert!(!reply.body.contains("MAIL"), "{path}");
            assert!(reply.header("www-authenticate").is_some());
            assert!(reply.header("content-security-policy").is_some());
            // With `no-referrer`, browsers send `Origin: null` with the pages' forms.
            assert_eq!(reply.header("referrer-policy"), Some("same-origin"));
        }
    }
    // A method that the address lacks reveals nothing either.
    for path in READS {
        for method in ["OPTIONS", "PATCH"] {
            let reply = fixture.raw(method, path, &[], "").await;
            assert_eq!(reply.status, 401, "{method} {path}");
        }
    }
    for (method, path, body) in WRITES {
        let headers = [("content-type", content_type(path, body))];
        let reply = fixture.raw(method, path, &headers, body).await;
        assert_eq!(reply.status, 401, "{method} {path}");
    }
    assert_eq!(dump(&fixture).await, before);
}

#[tokio::test]
async fn a_viewer_sees_no_byte_of_a_payload_or_a_header() {
    let fixture = fixture().await;
    for path in READS {
        let reply = fixture.get(VIEWER, path).await;
        assert!(reply.status == 200 || reply.status == 403, "{path}: {reply:?}");
        assert!(!reply.body.contains(SECRET), "{path}");
        assert!(!has_header(&reply.body), "{path}");
    }
    let search = "/v1/queues/MAIL/jobs?contains=S3CRET";
    assert_eq!(fixture.get(VIEWER, search).await.status, 403);
    for path in ["/job?queue=MAIL&key=waiting", "/v1/queues/MAIL/jobs/key:waiting"] {
        let body = fixture.get(READER, path).await.body;
        assert!(body.contains(SECRET) && has_header(&body), "{path}");
    }
}

/// Whether a body has the jobs' header: escaped on pages, plain in JSON.
fn has_header(body: &str) -> bool {
    body.contains("header&#60;") || body.contains("header</b>")
}

#[tokio::test]
async fn reading_changes_nothing() {
    let fixture = fixture().await;
    let before = dump(&fixture).await;
    let writes_by_get = [
        "/act?do=cancel&queue=MAIL&job=key:waiting",
        "/v1/queues/MAIL:purge",
        "/v1/queues/MAIL/jobs:cancel",
    ];
    for path in READS.into_iter().chain(writes_by_get) {
        fixture.get(ADMIN, path).await;
        fixture.send(ADMIN, "HEAD", path, None).await;
    }
    assert_eq!(dump(&fixture).await, before);
}

#[tokio::test]
async fn writes_from_other_sites_are_403_and_change_nothing() {
    let fixture = fixture().await;
    let before = dump(&fixture).await;
    let bearer = format!("Bearer {ADMIN}");
    let host = format!("http://{}", fixture.address);
    for (method, path, body) in WRITES {
        for origin in [
            &[("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "same-site"), ("origin", host.as_str())],
            &[("origin", "null")],
            &[("origin", "https://evil.example")],
        ] {
            let own =
                [("authorization", bearer.as_str()), ("content-type", content_type(path, body))];
            let reply = fixture.raw(method, path, &[&own, origin].concat(), body).await;
            assert_eq!(reply.status, 403, "{method} {path} {origin:?}");
        }
    }
    assert_eq!(dump(&fixture).await, before);
    let own = [("authorization", bearer.as_str()), ("origin", host.as_str())];
    assert_eq!(
        fixture.raw("DELETE", "/v1/queues/MAIL/jobs/key:waiting", &own, "").await.status,
        200
    );
}

#[tokio::test]
async fn readers_write_nothing_and_operators_do_not_purge() {
    let fixture = fixture().await;
    let before = dump(&fixture).await;
    for token in [VIEWER, READER] {
        for (method, path, body) in WRITES {
            let content_type = Some(content_type(path, body));
            let reply = fixture.send_as(token, method, path, content_type, body).await;
            assert_eq!(reply.status, 403, "{method} {path}");
        }
    }
    let body = Some(r#"{"confirm":"MAIL"}"#);
    assert_eq!(fixture.send(OPERATOR, "POST", "/v1/queues/MAIL:purge", body).await.status, 403);
    assert_eq!(fixture.get(OPERATOR, "/v1/audit").await.status, 403);
    assert_eq!(dump(&fixture).await, before);
}

#[tokio::test]
async fn numbers_and_bodies_beyond_measure_are_clamped_or_refused() {
    let fixture = fixture().await;
    for (path, status) in [
        ("/v1/queues/MAIL/jobs?limit=1000000000", 200),
        ("/v1/queues/MAIL/jobs?limit=1e9", 400),
        ("/v1/queues/MAIL/jobs?limit=-1", 400),
        ("/v1/queues/MAIL/jobs?limit=99999999999999999999999", 400),
        ("/v1/queues/MAIL/jobs?after=garbage", 400),
        ("/v1/queues/MAIL/jobs?state=nothing", 400),
        ("/v1/queues/MAIL/jobs?due_before=tomorrow", 400),
        ("/v1/queues/MAIL/forecast?window=1d&steps=1000000000", 200),
        ("/v1/queues/MAIL/forecast?window=999y", 409),
        ("/v1/forecast?window=8d", 409),
        ("/v1/queues/MAIL/forecast?window=99999999999999999999y", 400),
        ("/v1/queues/%00/jobs", 400),
        ("/v1/queues/MAIL/jobs/nonsense", 400),
        ("/jobs?queue=MAIL&after=garbage", 400),
        ("/jobs?queue=MAIL&state=nothing", 400),
        ("/job?queue=MAIL", 400),
        ("/v1/audit?limit=1000000000", 200),
    ] {
        let reply = fixture.get(ADMIN, path).await;
        assert_eq!(reply.status, status, "{path}: {}", reply.body);
    }
    let bearer = format!("Bearer {ADMIN}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let length = 100 * 1024 * 1024;
    // Refused by length alone: the body is never sent.
    let reply = fixture.exchange("POST", "/v1/queues/MAIL/jobs", &headers, length, "").await;
    assert_eq!(reply.status, 413, "{reply:?}");
    let deep = "[".repeat(100_000);
    let reply = fixture.send(ADMIN, "POST", "/v1/queues/MAIL/jobs", Some(&deep)).await;
    assert_eq!(reply.status, 400);
    // Another site's form can send JSON as plain text, without asking this server first.
    let (path, body) = ("/v1/queues/MAIL:purge", r#"{"confirm":"MAIL"}"#);
    let reply = fixture.send_as(ADMIN, "POST", path, Some("text/plain"), body).await;
    assert_eq!(reply.status, 415);
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_refused() {
    let fixture = fixture().await;
    let bearer = format!("Bearer {ADMIN}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    // While server and client wait, the paused clock jumps to the next timer.
    tokio::time::pause();
    let reply = fixture.exchange("POST", "/v1/queues/MAIL/jobs", &headers, 100, "{").await;
    assert_eq!(reply.status, 408, "{reply:?}");
}

#[tokio::test]
async fn markup_stays_text_on_every_page() {
    const MARKUP: &str = "<img src=x onerror=alert(1)>\"'>";
    let fixture = Fixture::start("").await;
    let queue = format!("Q{MARKUP}");
    let payload = serde_json::json!({ "text": MARKUP }).to_string();
    let dead = Verdict::dead(DeadReason::new(DeadKind::Exhausted, MARKUP));
    let mut ids = Vec::new();
    for (key, verdict) in [
        ("dead", Some(dead)),
        ("skip", Some(Verdict::skip(MARKUP))),
        ("retry", Some(Verdict::retry(Due::After(1.hours()), MARKUP))),
        ("run", None),
    ] {
        ids.push(fixture.schedule(&queue, &format!("{key}{MARKUP}"), &payload, Due::NOW).await);
        for job in fixture.claim(&queue, MARKUP).await {
            if let Some(verdict) = &verdict {
                fixture.settle(&job, verdict.clone()).await;
            }
        }
    }
    let fields = serde_json::json!({
        "host": MARKUP, "version": MARKUP,
        "queues": [{"queue": queue, "concurrency": 1, "running": 0, "lateness": [], "run_time": []}],
        "workers": [{"name": MARKUP, "running": 1}],
    });
    fixture.announce(MARKUP, fields).await;
    let unreadable = Announcement::new(format!("2{MARKUP}"), format!("\"{MARKUP}"), 60.seconds());
    fixture.store.announce(unreadable).await.unwrap();

    let encoded: String = queue.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let schedule = format!("/v1/schedules/{encoded}");
    let definition = serde_json::json!({"queue": queue, "every": "90s", "payload": MARKUP});
    let put = fixture.send(OPERATOR, "PUT", &schedule, Some(&definition.to_string())).await;
    assert_eq!(put.status, 200, "{put:?}");
    let markup = "%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E";
    let mut pages = vec![
        "/".to_owned(),
        format!("/queue?name={encoded}"),
        "/queue?name=%3Cimg%20src%3Dx%3E".to_owned(),
        "/dead".to_owned(),
        "/runners".to_owned(),
        "/audit".to_owned(),
        format!("/bulk?queue={encoded}&do=replay&error={markup}&find={markup}"),
        format!("/bulk?queue={encoded}&do={markup}"),
        format!("/jobs?queue={encoded}&find={markup}&error={markup}&contains={markup}"),
        format!("/?lang={markup}&done={markup}"),
        format!("/{markup}"),
        format!("/v1/queues/{encoded}/{markup}"),
        "/schedules".to_owned(),
        format!("/schedule?name={encoded}"),
        format!("/schedule?name=no{encoded}"),
        "/forecast".to_owned(),
        format!("/forecast?window={markup}"),
    ];
    for state in ["scheduled", "ready", "running", "dead", "ended"] {
        pages.push(format!("/jobs?queue={encoded}&state={state}"));
    }
    for id in &ids[1..] {
        pages.push(format!("/job?queue={encoded}&id={id}"));
    }
    for page in &pages {
        let reply = fixture.get(ADMIN, page).await;
        let content_type = reply.header("content-type").unwrap_or_default();
        if content_type.starts_with("text/html") {
            for markup in ["<img", "\"'>", "<b>header"] {
                assert!(!reply.body.contains(markup), "{page}: {}", reply.body);
            }
        }
        // These pages show nothing of it, or only percent-encoded.
        let silent = ["/v1/", "/?lang=", "/%3Cimg"];
        let is_silent = silent.iter().any(|it| page.starts_with(it)) || page.contains("&do=%3C");
        assert!(is_silent || reply.body.contains("&#60;img"), "{page}: {}", reply.body);
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    }
    let ended = format!("/jobs?queue={encoded}&state=ended");
    let reply = fixture.get(ADMIN, &ended).await;
    assert!(reply.body.contains("skip&#60;img"), "the job that ended is not listed: {reply:?}");
}

#[tokio::test]
async fn the_address_without_the_slash_leads_to_the_one_with_it() {
    let fixture = Fixture::start("/ops/dq").await;
    let reply = fixture.get(VIEWER, "/ops/dq?lang=zh").await;
    assert_eq!((reply.status, reply.header("location")), (308, Some("./dq/?lang=zh")));
    let reply = fixture.get(VIEWER, "/ops/dq/?lang=zh").await;
    assert_eq!(reply.status, 200);
    assert!(reply.body.contains("概览"));
    // No link leaves the page's prefix, and nothing is inline, which the content security policy
    // forbids.
    for attribute in ["href=\"/", "src=\"/", "action=\"/", "href=\"http", "style=\"", "onclick"] {
        assert!(!reply.body.contains(attribute), "{attribute}");
    }
}

/// Orchestrators ask by IP address and have no token.
#[tokio::test]
async fn health_and_readiness_need_no_token_and_tell_nothing() {
    let fixture = Fixture::start("/ops/dq").await;
    fixture.schedule("MAIL", "a", "1", Due::NOW).await;
    for path in ["/ops/dq/healthz", "/ops/dq/readyz"] {
        for method in ["GET", "HEAD"] {
            let reply = fixture.raw(method, path, &[], "").await;
            let body = if method == "GET" { "ok" } else { "" };
            assert_eq!((reply.status, reply.body.as_str()), (200, body), "{method} {path}");
            assert_eq!(reply.header("cache-control"), Some("no-store"), "{reply:?}");
            assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{reply:?}");
        }
        let refused = fixture.raw("POST", path, &[], "").await;
        assert_eq!((refused.status, refused.header("allow")), (405, Some("GET,HEAD")));
    }
    for path in
        ["/ops/dq/", "/ops/dq/v1/queues", "/ops/dq/metrics", "/ops/dq/healthz/", "/ops/dq/x"]
    {
        assert_eq!(fixture.raw("GET", path, &[], "").await.status, 401, "{path}");
    }
}

#[tokio::test]
async fn a_server_whose_store_is_closed_is_alive_but_not_ready() {
    let fixture = Fixture::start("").await;
    fixture.dq.close().await.unwrap();
    let reply = fixture.get(VIEWER, "/v1/queues").await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")), "{reply:?}");
    assert_eq!(fixture.raw("GET", "/healthz", &[], "").await.status, 200);
    let reply = fixture.raw("GET", "/readyz", &[], "").await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")), "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    assert_eq!(reply.json()["detail"], "the store does not answer");
}
