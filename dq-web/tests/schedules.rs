//! Schedules, forecast and simulations: API, pages, permissions.

mod support;

use dq_core::{Due, DurationExt};
use serde_json::{Value, json};
use support::{ADMIN, Fixture, OPERATOR, READER, VIEWER};

const DEFINITION: &str = r#"{"queue": "REPORT", "cron": "30 2 * * *", "tz": "Europe/Stockholm",
    "payload": {"text": "S3CRET"}}"#;

/// A server with the schedule `report`, at the root.
async fn fixture() -> Fixture {
    let fixture = Fixture::start("").await;
    let put = fixture.send(OPERATOR, "PUT", "/v1/schedules/report", Some(DEFINITION)).await;
    assert_eq!((put.status, put.json()), (200, json!({"changed": true})), "{put:?}");
    fixture
}

#[tokio::test]
async fn a_schedule_is_stored_seen_changed_and_removed() {
    let fixture = fixture().await;
    let again = fixture.send(OPERATOR, "PUT", "/v1/schedules/report", Some(DEFINITION)).await;
    assert_eq!(again.json(), json!({"changed": false}));
    let list = fixture.send(VIEWER, "GET", "/v1/schedules", None).await.json();
    assert_eq!((&list[0]["name"], &list[0]["cron"]), (&json!("report"), &json!("30 2 * * *")));
    let seen = async |next: &str| {
        fixture.send(READER, "GET", &format!("/v1/schedules/report{next}"), None).await.json()
    };
    let shown = seen("?next=3").await;
    assert_eq!(shown["next"].as_array().unwrap().len(), 3);
    assert_eq!(shown["next"][0]["due"], shown["next_due"]);
    assert_eq!(shown["payload"]["json"], json!({"text": "S3CRET"}));
    assert_eq!(seen("?next=1000000000").await["next"].as_array().unwrap().len(), 100);

    let post = async |action: &str, body: Option<&str>| {
        let path = format!("/v1/schedules/report:{action}");
        let reply = fixture.send(OPERATOR, "POST", &path, body).await;
        (reply.status, reply.json())
    };
    assert_eq!(post("pause", None).await, (200, json!({"changed": true})));
    assert_eq!(post("pause", None).await, (200, json!({"changed": false})));
    assert_eq!(seen("").await["paused"], json!(true));
    assert_eq!(post("resume", None).await, (200, json!({"changed": true})));
    assert_eq!(post("skip-next", None).await, (200, json!({"result": "skipped"})));
    assert_eq!(seen("").await["next_due"], shown["next"][1]["due"]);
    let (status, run) = post("run", None).await;
    assert_eq!((status, &run["result"]), (201, &json!("created")));
    let (status, kept) = post("run", None).await;
    assert_eq!((status, &kept["result"], &kept["id"]), (200, &json!("kept"), &run["id"]));
    fixture.claim("REPORT", "worker-1").await;
    assert_eq!(post("run", None).await.0, 409);
    let past = json!({"after": "2026-03-01T00:00:00Z", "until": "2026-03-04T00:00:00Z"});
    let stored = (200, json!({"changed": 3, "existing": 0}));
    assert_eq!(post("backfill", Some(&past.to_string())).await, stored);
    for body in [None, Some(r#"{"after":"2026-03-01T00:00:00Z"}"#), Some(r#"{"from":"now"}"#)] {
        assert_eq!(post("backfill", body).await.0, 400, "{body:?}");
    }
    assert_eq!(post("stop", None).await.0, 405);

    let remove = async || fixture.send(OPERATOR, "DELETE", "/v1/schedules/report", None).await;
    assert_eq!(remove().await.json(), json!({"result": "removed"}));
    let gone = remove().await;
    assert_eq!((gone.status, &gone.json()["title"]), (404, &json!("not found")));
    assert_eq!(post("pause", None).await.0, 404);
}

#[tokio::test]
async fn names_with_slashes_survive() {
    let fixture = Fixture::start("/ops/dq").await;
    let path = "/ops/dq/v1/schedules/a%2F..%2Fb%3Fc%23d";
    assert_eq!(fixture.send(OPERATOR, "PUT", path, Some(DEFINITION)).await.status, 200);
    let encoded = "/ops/dq/v1/schedules/base64:YS8uLi9iP2MjZA";
    let seen = fixture.send(READER, "GET", encoded, None).await.json();
    assert_eq!(seen["name"], json!("a/../b?c#d"));
    let pause = fixture.send(OPERATOR, "POST", &format!("{encoded}:pause"), None).await;
    assert_eq!(pause.json(), json!({"changed": true}));
}

#[tokio::test]
async fn a_page_takes_a_name_as_it_is() {
    let fixture = fixture().await;
    // `base64:cmVwb3J0` in an API path is `report`.
    let path = "/v1/schedules/base64:YmFzZTY0OmNtVndiM0ow";
    assert_eq!(fixture.send(OPERATOR, "PUT", path, Some(DEFINITION)).await.status, 200);
    let page = fixture.send(READER, "GET", "/schedule?name=base64%3AcmVwb3J0", None).await.body;
    assert!(page.contains(r"<title>base64:cmVwb3J0"), "{page}");
    fixture.schedule("base64:TUFJTA", "a", "1", Due::After(1.hours())).await;
    fixture.schedule("MAIL", "b", "1", Due::After(1.hours())).await;
    for path in ["/queue?name=base64%3ATUFJTA", "/jobs?queue=base64%3ATUFJTA&state=scheduled"] {
        let page = fixture.send(READER, "GET", path, None).await.body;
        assert!(page.contains("base64:TUFJTA"), "{path}: {page}");
    }
    let token = format!("Bearer {OPERATOR}");
    let headers =
        [("authorization", token.as_str()), ("content-type", "application/x-www-form-urlencoded")];
    for body in ["do=schedule:pause&name=base64%3AcmVwb3J0", "do=pause&queue=base64%3ATUFJTA"] {
        let done = fixture.raw("POST", "/act", &headers, body.as_bytes()).await;
        assert!(done.status < 400, "{body}: {done:?}");
    }
    let paused =
        async |path: &str| fixture.send(READER, "GET", path, None).await.json()["paused"].clone();
    assert_eq!(paused(path).await, json!(true));
    assert_eq!(paused("/v1/schedules/report").await, json!(false));
    assert_eq!(paused("/v1/queues/base64:YmFzZTY0OlRVRkpUQQ").await, json!(true));
    assert_eq!(paused("/v1/queues/MAIL").await, json!(false));
}

/// Changing or costly requests, with their bodies.
const WRITES: [(&str, &str, &str); 9] = [
    ("PUT", "/v1/schedules/report", r#"{"queue": "MAIL", "every": "1h"}"#),
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

const READS: [&str; 7] = [
    "/schedules",
    "/schedule?name=report",
    "/forecast",
    "/forecast?window=7d",
    "/v1/schedules",
    "/v1/schedules/report",
    "/v1/forecast",
];

async fn write(
    fixture: &Fixture,
    (method, path, body): (&str, &str, &str),
    headers: &[(&str, &str)],
) -> u16 {
    let kind = match path {
        "/act" => "application/x-www-form-urlencoded",
        _ => "application/json",
    };
    let headers = [headers, &[("content-type", kind)]].concat();
    fixture.raw(method, path, &headers, body.as_bytes()).await.status
}

#[tokio::test]
async fn who_may_not_change_schedules_changes_nothing() {
    let fixture = fixture().await;
    let state = async || {
        let mut state = fixture.send(ADMIN, "GET", "/v1/schedules/report", None).await.json();
        // The answer's time.
        state.as_object_mut().unwrap().remove("at");
        state
    };
    let before = state().await;
    let [reader, operator] = [READER, OPERATOR].map(|token| format!("Bearer {token}"));
    for request in WRITES {
        assert_eq!(write(&fixture, request, &[]).await, 401, "{request:?}");
        let own = [("authorization", reader.as_str())];
        assert_eq!(write(&fixture, request, &own).await, 403, "{request:?}");
        let foreign = [("authorization", operator.as_str()), ("sec-fetch-site", "cross-site")];
        assert_eq!(write(&fixture, request, &foreign).await, 403, "{request:?}");
    }
    for path in READS {
        assert_eq!(fixture.raw("GET", path, &[], b"").await.status, 401, "{path}");
        let seen = fixture.send(VIEWER, "GET", path, None).await;
        assert_eq!(seen.status, 200, "{path}");
        assert!(!seen.body.contains("S3CRET"), "{path}: {}", seen.body);
    }
    for path in ["/v1/schedules/report:run", "/v1/simulate", "/act?do=schedule:run&name=report"] {
        assert_ne!(fixture.send(ADMIN, "GET", path, None).await.status, 200, "{path}");
    }
    assert_eq!(state().await, before);
    assert!(fixture.claim("REPORT", "worker-1").await.is_empty());
}

#[tokio::test]
async fn markup_in_names_zones_and_payloads_stays_text() {
    const MARKUP: &str = "<img src=x onerror=alert(1)>\"'>";
    let fixture = Fixture::start("").await;
    let definition = json!({"queue": format!("Q{MARKUP}"), "every": "90s", "payload": MARKUP});
    let encoded: String = MARKUP.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let path = format!("/v1/schedules/{encoded}");
    let put = fixture.send(OPERATOR, "PUT", &path, Some(&definition.to_string())).await;
    assert_eq!(put.status, 200, "{put:?}");
    fixture.schedule(&format!("Q{MARKUP}"), "a", "1", Due::After(1.hours())).await;
    for path in [
        "/schedules".to_owned(),
        format!("/schedule?name={encoded}"),
        "/forecast".to_owned(),
        "/audit".to_owned(),
        format!("/schedule?name=no{encoded}"),
        format!("/forecast?window={encoded}"),
    ] {
        let page = fixture.send(ADMIN, "GET", &path, None).await;
        assert!(!page.body.contains("<img") && !page.body.contains("\"'>"), "{path}: {page:?}");
        assert!(page.body.contains("&#60;img"), "{path}: {page:?}");
    }
}

#[tokio::test]
async fn the_overview_shows_no_queue_of_the_framework() {
    let fixture = fixture().await;
    fixture.schedule("MAIL", "a", "1", Due::After(1.hours())).await;
    let page = fixture.send(VIEWER, "GET", "/", None).await.body;
    assert!(page.contains("MAIL") && !page.contains("dq.tickers"), "{page}");
    let metrics = fixture.send(VIEWER, "GET", "/metrics", None).await.body;
    assert!(metrics.contains(r#"dq_queue_jobs{queue="dq.tickers",state="scheduled"} 1"#));
    assert!(!metrics.contains(r#"dq_queue_runners{queue="dq.tickers"}"#), "{metrics}");
}

#[tokio::test]
async fn the_forecast_of_all_queues_is_clamped() {
    let fixture = Fixture::start("").await;
    fixture.schedule("MAIL", "a", "1", Due::After(90.minutes())).await;
    fixture.schedule("REPORT", "b", "1", Due::After(90.minutes())).await;
    for (query, hours) in [("", 25), ("?window=2h", 3), ("?window=999y", 169), ("?window=0s", 1)] {
        let path = format!("/v1/forecast{query}");
        let reply = fixture.send(VIEWER, "GET", &path, None).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let queues = reply.json()["queues"].as_array().unwrap().clone();
        // A window of hours touches one more clock hour, unless it starts on one.
        let counted = |queue: &Value| queue["hours"].as_array().unwrap().len();
        assert!(
            queues.iter().all(|queue| (hours - 1..=hours).contains(&counted(queue))),
            "{query}"
        );
        assert_eq!(queues.len(), if query == "?window=0s" { 0 } else { 2 }, "{query}");
    }
    for query in ["?window=soon", "?window=99999999999999999999y"] {
        let reply = fixture.send(VIEWER, "GET", &format!("/v1/forecast{query}"), None).await;
        assert_eq!(reply.status, 400, "{query}");
    }
}

#[tokio::test]
async fn requests_for_the_same_forecast_share_it() {
    let fixture = Fixture::start("").await;
    let at = async |query: &str| {
        let path = format!("/v1/forecast{query}");
        fixture.send(VIEWER, "GET", &path, None).await.json()["at"].clone()
    };
    let first = at("").await;
    fixture.pass(1.seconds()).await;
    assert_eq!(at("?window=24h").await, first);
    assert_ne!(at("?window=23h").await, first);
}

#[tokio::test]
async fn a_paused_queue_is_not_more_than_the_runners_can_do() {
    let fixture = fixture().await;
    let pause = fixture.send(OPERATOR, "POST", "/v1/queues/REPORT:pause", None).await;
    assert_eq!(pause.status, 200, "{pause:?}");
    // Longer than a day: a daily schedule's next occurrence can be 24 hours ahead, or 25 when
    // summer time ends. A queue with nothing in the window is not listed.
    let page = fixture.send(VIEWER, "GET", "/forecast?window=48h", None).await.body;
    assert!(page.contains(r#"<span class="badge paused">paused</span>"#), "{page}");
    assert!(page.contains("occurrences of schedules") && !page.contains("More is due"), "{page}");
    let forecast = fixture.send(VIEWER, "GET", "/v1/forecast?window=48h", None).await.json();
    assert_eq!(forecast["queues"][0]["paused"], json!(true), "{forecast}");
}

#[tokio::test]
async fn a_simulation_is_played_for_operators() {
    let fixture = fixture().await;
    fixture.schedule("MAIL", "a", "1", Due::After(90.minutes())).await;
    let body = r#"{"window":"3h","default_concurrency":1,"default_run_time":"1s"}"#;
    let played = fixture.send(OPERATOR, "POST", "/v1/simulate", Some(body)).await.json();
    let mail = played["queues"].as_array().unwrap().iter().find(|it| it["queue"] == "MAIL");
    assert_eq!(mail.unwrap()["jobs"], json!(1), "{played}");
    for (body, status) in [
        ("{}", 409),
        (r#"{"load":0}"#, 400),
        (r#"{"window":"99y"}"#, 400),
        (r#"{"windows":"1h"}"#, 400),
    ] {
        let refused = fixture.send(OPERATOR, "POST", "/v1/simulate", Some(body)).await;
        assert_eq!(refused.status, status, "{body}: {refused:?}");
    }
}

#[tokio::test]
async fn the_document_describes_schedules() {
    let fixture = Fixture::start("").await;
    let document = fixture.send(VIEWER, "GET", "/openapi.json", None).await.json();
    for (path, method) in [
        ("/v1/schedules", "get"),
        ("/v1/schedules/{schedule}", "put"),
        ("/v1/schedules/{schedule}", "delete"),
        ("/v1/schedules/{schedule}:skip-next", "post"),
        ("/v1/schedules/{schedule}:backfill", "post"),
        ("/v1/forecast", "get"),
        ("/v1/simulate", "post"),
    ] {
        assert!(document["paths"][path][method].is_object(), "{method} {path}");
    }
}

#[tokio::test]
async fn forms_change_schedules_and_lead_back() {
    let fixture = fixture().await;
    let bearer = format!("Bearer {OPERATOR}");
    let headers =
        [("authorization", bearer.as_str()), ("content-type", "application/x-www-form-urlencoded")];
    let send = async |fields: &str| {
        let body = format!("{fields}&name=report&back=schedule%3Fname%3Dreport");
        fixture.raw("POST", "/act", &headers, body.as_bytes()).await
    };
    for (fields, done) in [
        ("do=schedule:pause", "schedule-pause"),
        ("do=schedule:resume", "schedule-resume"),
        ("do=schedule:skip", "schedule-skip"),
        ("do=schedule:run", "schedule-run"),
        ("do=schedule:run", "schedule-kept"),
        (
            "do=schedule:backfill&after=2026-03-01T00:00:00Z&until=2026-03-04T00:00:00Z",
            "schedule-backfill",
        ),
        (
            "do=schedule:backfill&after=2026-03-01T12:00:00Z&until=2026-03-01T13:00:00Z",
            "schedule-no-backfill",
        ),
        ("do=schedule:remove", "schedule-remove"),
    ] {
        let reply = send(fields).await;
        let location = format!("schedule?name=report&done={done}");
        assert_eq!((reply.status, reply.header("location")), (303, Some(&*location)), "{fields}");
        let page = fixture.send(OPERATOR, "GET", &format!("/{location}"), None).await;
        // After a removal, the form leads back to a missing schedule.
        let is_gone = page.status == 404;
        assert_eq!(is_gone, fields == "do=schedule:remove", "{fields}");
        assert!(is_gone || page.body.contains("class=\"notice\""), "{fields}");
    }
    assert_eq!(send("do=schedule:pause").await.status, 404);
    assert_eq!(send("do=schedule:stop").await.status, 400);
    // An error page has the language of the form's page, and links to that page in the other
    // language.
    let body = "do=schedule:stop&name=report&back=schedule%3Fname%3Dreport%26lang%3Dzh";
    let reply = fixture.raw("POST", "/act", &headers, body.as_bytes()).await;
    assert!(reply.body.contains("<html lang=\"zh"), "{reply:?}");
    assert!(reply.body.contains("href=\"schedule?name=report&#38;lang=en\""), "{reply:?}");
}
