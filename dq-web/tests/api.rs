use dq_core::{Due, DurationExt};
use serde_json::json;

use crate::support::{ADMIN, Fixture, OPERATOR, READER, VIEWER};

#[tokio::test]
async fn the_status_tells_what_became_of_a_new_job() {
    let fixture = Fixture::start("").await;
    let jobs = "/v1/queues/ORDER/jobs";
    let body = Some(r#"{"payload":{"order":4711},"key":"order-4711","due":"30m"}"#);

    let created = fixture.send(OPERATOR, "POST", jobs, body).await;
    let id = created.json()["id"].as_str().unwrap().to_owned();
    assert_eq!((created.status, created.header("location")), (201, Some(&*format!("jobs/{id}"))));
    let kept = fixture.send(OPERATOR, "POST", jobs, body).await;
    assert_eq!((kept.status, kept.json()["result"].clone()), (200, json!("kept")));

    let path = "/v1/queues/ORDER/jobs/key:order-4711";
    let cancelled = fixture.send(OPERATOR, "DELETE", path, None).await;
    assert_eq!(cancelled.json(), json!({"result": "cancelled"}));
    let gone = fixture.send(OPERATOR, "DELETE", path, None).await;
    assert_eq!((gone.status, gone.header("content-type")), (404, Some("application/problem+json")));
    assert!(gone.json()["remedy"].is_string());
}

#[tokio::test]
async fn many_jobs_are_scheduled_in_one_call_or_none() {
    let fixture = Fixture::start("").await;
    let path = "/v1/queues/ORDER/jobs:schedule";
    let count = async || fixture.get(READER, "/v1/queues/ORDER").await.json()["scheduled"].clone();
    let job = |n: usize| json!({"payload": n, "due": "1h", "idempotency_key": format!("k{n}")});
    let send = async |jobs: Vec<serde_json::Value>| {
        fixture.send(OPERATOR, "POST", path, Some(&json!({"jobs": jobs}).to_string())).await
    };

    let first = send(vec![job(1), json!({"payload": 9, "due": "1h", "key": "a"}), job(2)]).await;
    let results = first.json()["results"].clone();
    assert_eq!((first.status, results.as_array().unwrap().len()), (200, 3), "{results}");
    let again = send(vec![job(2), job(3), json!({"payload": 9, "key": "a"})]).await.json();
    assert_eq!(again["results"][0]["id"], results[2]["id"], "a repeated job is stored once");
    assert_eq!(again["results"][1]["result"], json!("created"));
    assert_eq!(again["results"][2]["result"], json!("kept"));
    assert_eq!(count().await, json!(4));

    for (jobs, word) in [
        (vec![job(4), json!({"payload": 1, "due": "soon"})], "soon"),
        (vec![job(4), json!({"payload": 1, "key": "k".repeat(2_000)})], "key"),
        (vec![job(4), json!({"dew": "1h"})], "dew"),
        (vec![job(4), json!([1])], "an object"),
        (vec![job(4), json!({"payload": 1, "idempotency_key": "é"})], "é"),
        ((0..1_001).map(job).collect(), "1001 jobs"),
    ] {
        let refused = send(jobs).await;
        assert_eq!((refused.status, refused.body.contains(word)), (400, true), "{}", refused.body);
    }
    let one = r#"{"jobs":[{"payload":1}]}"#;
    let bearer = format!("Bearer {OPERATOR}");
    let headers = [
        ("authorization", &*bearer),
        ("content-type", "application/json"),
        ("idempotency-key", "k"),
    ];
    assert_eq!(fixture.raw("POST", path, &headers, one).await.status, 400);
    let named = Some(r#"{"payload":1,"idempotency_key":"k"}"#);
    assert_eq!(fixture.send(OPERATOR, "POST", "/v1/queues/ORDER/jobs", named).await.status, 400);
    assert_eq!(count().await, json!(4), "one invalid job prevents all");
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
        let created = fixture.raw("POST", "/v1/queues/ORDER/jobs", &headers, body).await.json();
        let path = format!("/v1/queues/ORDER/jobs/{}", created["id"].as_str().unwrap());
        let job = fixture.get(READER, &path).await.json();
        assert_eq!(job["headers"]["traceparent"], stored, "{job}");
    }
}

#[tokio::test]
async fn payloads_that_are_not_json_and_names_with_slashes_survive() {
    let fixture = Fixture::start("/ops/dq").await;
    let jobs = "/ops/dq/v1/queues/a%2F..%2Fb%3Fc%23d/jobs";
    let body = r#"{"payload_base64":"AP8=","content_type":"application/x-thing","key":"k/1"}"#;
    assert_eq!(fixture.send(OPERATOR, "POST", jobs, Some(body)).await.status, 201);

    let seen = fixture.get(READER, &format!("{jobs}/key:k%2F1")).await.json();
    assert_eq!((&seen["queue"], &seen["key"]), (&json!("a/../b?c#d"), &json!("k/1")));
    assert_eq!(seen["payload"]["base64"], json!("AP8="));
    let encoded = "/ops/dq/v1/queues/base64:YS8uLi9iP2MjZA/jobs/key-base64:ay8x";
    assert_eq!(fixture.get(READER, encoded).await.json(), seen);
}

#[tokio::test]
async fn bodies_that_are_not_what_the_address_takes_are_refused_and_change_nothing() {
    let fixture = Fixture::start("").await;
    fixture.schedule("MAIL", "a", "1", Due::After(1.hours())).await;
    let (jobs, job) = ("/v1/queues/MAIL/jobs", "/v1/queues/MAIL/jobs/key:a");
    for (method, path, body) in [
        ("POST", jobs, r#"{}"#),
        ("POST", jobs, r#"{"payload":1,"payload_base64":""}"#),
        ("POST", jobs, r#"{"payload":null,"payload_base64":"AP8="}"#),
        ("POST", jobs, r#"{"payload":1,"dew":"1h"}"#),
        ("POST", jobs, r#"{"payload":1,"headers":{"content-type":"text/plain"}}"#),
        ("POST", jobs, r#"[{"to":"ann"}]"#),
        ("PATCH", job, r#"["2h"]"#),
        ("POST", "/v1/queues/MAIL/jobs/key:a:run", r#"{"due":"2h"}"#),
        ("POST", "/v1/queues/MAIL:purge", r#"["MAIL"]"#),
        // These take parameters for a filter.
        ("POST", "/v1/queues/MAIL/jobs:cancel?dry_run=true", r#"{"all":true}"#),
        ("POST", "/v1/queues/MAIL/jobs?due=1h", r#"{"payload":1}"#),
        ("DELETE", "/v1/queues/MAIL/jobs/key:a?dry_run=1", "{}"),
    ] {
        let refused = fixture.send(ADMIN, method, path, Some(body)).await;
        assert_eq!(refused.status, 400, "{method} {path} {body}: {refused:?}");
    }
    let form = fixture.submit(ADMIN, "do=bulk:cancel&queue=MAIL").await;
    assert_eq!(form.status, 400, "{form:?}");

    let queue = fixture.get(VIEWER, "/v1/queues/MAIL").await.json();
    assert_eq!((&queue["scheduled"], &queue["ready"]), (&json!(1), &json!(0)), "{queue}");
}

#[tokio::test]
async fn unknown_parameters_of_a_query_are_refused_by_name() {
    let fixture = Fixture::start("").await;
    for path in [
        "/v1/queues/ORDER/jobs?limt=1",
        "/v1/queues/ORDER/forecast?limt=1",
        "/v1/forecast?limt=1",
        "/v1/audit?limt=1",
        "/v1/schedules/nightly?limt=1",
    ] {
        let refused = fixture.get(ADMIN, path).await;
        assert_eq!(refused.status, 400, "{path}");
        assert!(refused.json()["detail"].as_str().unwrap().contains("limt"), "{refused:?}");
    }
}

#[tokio::test]
async fn a_change_of_many_jobs_says_which_ones() {
    let fixture = Fixture::start("").await;
    fixture.schedule("MAIL", "a", "1", Due::After(1.hours())).await;
    let cancel = async |body: Option<&str>| {
        fixture.send(OPERATOR, "POST", "/v1/queues/MAIL/jobs:cancel", body).await
    };
    for body in [
        None,
        Some("{}"),
        Some(r#"{"filter":{}}"#),
        Some(r#"{"filter":{"error":null}}"#),
        Some(r#"{"filter":{"key_prefix":""}}"#),
        Some(r#"{"filter":{"key_prefix":"a"},"all":true}"#),
    ] {
        assert_eq!(cancel(body).await.status, 400, "{body:?}");
    }
    assert_eq!(cancel(Some(r#"{"dry_run":true}"#)).await.json()["matching"], json!(1));
    assert_eq!(cancel(Some(r#"{"expected":0}"#)).await.status, 409);
    assert_eq!(cancel(Some(r#"{"all":true}"#)).await.json(), json!({"changed": 1}));
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
    assert_eq!(fixture.get(ADMIN, "/ops/dq/v1/queues/MAIL:pause").await.status, 404);
}

#[tokio::test]
async fn metrics_are_gauges_of_the_store() {
    let fixture = Fixture::start("").await;
    fixture.schedule("A\"\\", "a", "1", Due::NOW).await;
    fixture.clock.advance(2.seconds());
    let metrics = fixture.get(VIEWER, "/metrics").await.body;
    assert!(metrics.contains(r#"dq_queue_jobs{queue="A\"\\",state="ready"} 1"#), "{metrics}");
    let oldest = metrics
        .lines()
        .find_map(|line| line.strip_prefix(r#"dq_oldest_ready_seconds{queue="A\"\\"} "#));
    let oldest: f64 = oldest.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap();
    assert!((2.0..600.0).contains(&oldest), "{metrics}");
}
