use crate::support::{ADMIN, Fixture, OPERATOR, READER, VIEWER};
use dq_core::{Due, DurationExt};
use serde_json::json;

const DEFINITION: &str = r#"{"queue": "REPORT", "cron": "30 2 * * *", "tz": "Europe/Stockholm",
    "payload": {"text": "S3CRET"}}"#;

async fn fixture() -> Fixture {
    let fixture = Fixture::start("").await;
    let put = fixture.send(OPERATOR, "PUT", "/v1/schedules/report", Some(DEFINITION)).await;
    assert_eq!((put.status, put.json()), (200, json!({"changed": true})), "{put:?}");
    fixture
}

#[tokio::test]
async fn the_status_tells_what_became_of_a_change() {
    let fixture = fixture().await;
    let status = async |action: &str, body: Option<&str>| {
        let path = format!("/v1/schedules/report:{action}");
        fixture.send(OPERATOR, "POST", &path, body).await.status
    };
    assert_eq!(status("run", None).await, 201);
    assert_eq!(status("run", None).await, 200, "a job of the schedule waits");
    fixture.claim("REPORT", "worker-1").await;
    assert_eq!(status("run", None).await, 409, "it runs");
    for body in [None, Some(r#"{"after":"2026-03-01T00:00:00Z"}"#), Some(r#"{"from":"now"}"#)] {
        assert_eq!(status("backfill", body).await, 400, "{body:?}");
    }
    assert_eq!(status("stop", None).await, 405);
    let remove = async || fixture.send(OPERATOR, "DELETE", "/v1/schedules/report", None).await;
    assert_eq!(remove().await.json(), json!({"result": "removed"}));
    assert_eq!((remove().await.status, status("pause", None).await), (404, 404));
}

#[tokio::test]
async fn pages_of_the_frameworks_queue_offer_no_change() {
    let fixture = fixture().await;
    let run = fixture.send(OPERATOR, "POST", "/v1/schedules/report:run", None).await;
    assert_eq!(run.status, 201);
    for (queue, state, changes) in [("REPORT", "ready", true), ("dq.schedules", "scheduled", false)]
    {
        let list = format!("/jobs?queue={queue}&state={state}");
        let page = fixture.get(ADMIN, &list).await.body;
        let job = page.split("href=\"job?").nth(1).unwrap_or_else(|| panic!("no job: {page}"));
        let job = format!(
            "/job?{}",
            job.split('"').next().unwrap().replace("&amp;", "&").replace("&#38;", "&")
        );
        let bulk = format!("/bulk?queue={queue}&do=cancel");
        for path in [&format!("/queue?name={queue}"), &list, &job, &bulk] {
            let page = fixture.get(ADMIN, path).await.body;
            assert!(page.contains(queue), "{path}: {page}");
            assert_eq!(page.contains("action=\"act\""), changes, "{path}: {page}");
        }
        assert_eq!(page.contains("href=\"bulk"), changes, "{page}");
    }
}

#[tokio::test]
async fn a_page_takes_a_name_as_it_is() {
    let fixture = fixture().await;
    // `base64:cmVwb3J0` in an API path is `report`.
    let path = "/v1/schedules/base64:YmFzZTY0OmNtVndiM0ow";
    assert_eq!(fixture.send(OPERATOR, "PUT", path, Some(DEFINITION)).await.status, 200);
    let page = fixture.get(READER, "/schedule?name=base64%3AcmVwb3J0").await.body;
    assert!(page.contains(r"<title>base64:cmVwb3J0"), "{page}");
    fixture.schedule("base64:TUFJTA", "a", "1", Due::After(1.hours())).await;
    fixture.schedule("MAIL", "b", "1", Due::After(1.hours())).await;
    for path in ["/queue?name=base64%3ATUFJTA", "/jobs?queue=base64%3ATUFJTA&state=scheduled"] {
        let page = fixture.get(READER, path).await.body;
        assert!(page.contains("base64:TUFJTA"), "{path}: {page}");
    }
    for fields in ["do=schedule:pause&name=base64%3AcmVwb3J0", "do=pause&queue=base64%3ATUFJTA"] {
        let done = fixture.submit(OPERATOR, fields).await;
        assert!(done.status < 400, "{fields}: {done:?}");
    }
    let paused = async |path: &str| fixture.get(READER, path).await.json()["paused"].clone();
    assert_eq!(paused(path).await, json!(true));
    assert_eq!(paused("/v1/schedules/report").await, json!(false));
    assert_eq!(paused("/v1/queues/base64:YmFzZTY0OlRVRkpUQQ").await, json!(true));
    assert_eq!(paused("/v1/queues/MAIL").await, json!(false));
}

#[tokio::test]
async fn the_overview_shows_no_queue_of_the_framework() {
    let fixture = fixture().await;
    fixture.schedule("MAIL", "a", "1", Due::After(1.hours())).await;
    let page = fixture.get(VIEWER, "/").await.body;
    assert!(page.contains("MAIL") && !page.contains("dq.schedules"), "{page}");
    let metrics = fixture.get(VIEWER, "/metrics").await.body;
    assert!(metrics.contains(r#"dq_queue_jobs{queue="dq.schedules",state="scheduled"} 1"#));
    assert!(!metrics.contains(r#"dq_queue_runners{queue="dq.schedules"}"#), "{metrics}");
}

#[tokio::test]
async fn requests_for_the_same_forecast_share_it() {
    let fixture = Fixture::start("").await;
    let at = async |query: &str| {
        let path = format!("/v1/forecast{query}");
        fixture.get(VIEWER, &path).await.json()["at"].clone()
    };
    let first = at("").await;
    fixture.clock.advance(1.seconds());
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
    let page = fixture.get(VIEWER, "/forecast?window=48h").await.body;
    assert!(page.contains(r#"<span class="badge paused">paused</span>"#), "{page}");
    assert!(page.contains("occurrences of schedules") && !page.contains("More is due"), "{page}");
    let forecast = fixture.get(VIEWER, "/v1/forecast?window=48h").await.json();
    assert_eq!(forecast["queues"][0]["paused"], json!(true), "{forecast}");
}

#[tokio::test]
async fn forms_change_schedules_and_lead_back() {
    let fixture = fixture().await;
    let send = async |fields: &str| {
        let fields = format!("{fields}&name=report&back=schedule%3Fname%3Dreport");
        fixture.submit(OPERATOR, &fields).await
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
        let page = fixture.get(OPERATOR, &format!("/{location}")).await;
        // After a removal, the form leads back to a missing schedule.
        let is_gone = page.status == 404;
        assert_eq!(is_gone, fields == "do=schedule:remove", "{fields}");
        assert!(is_gone || page.body.contains("class=\"notice\""), "{fields}");
    }
    assert_eq!(send("do=schedule:pause").await.status, 404);
    assert_eq!(send("do=schedule:stop").await.status, 400);
    // An error page has the language of the form's page, and links to that page in the other
    // language.
    let fields = "do=schedule:stop&name=report&back=schedule%3Fname%3Dreport%26lang%3Dzh";
    let reply = fixture.submit(OPERATOR, fields).await;
    assert!(reply.body.contains("<html lang=\"zh"), "{reply:?}");
    assert!(reply.body.contains("href=\"schedule?name=report&#38;lang=en\""), "{reply:?}");
}
