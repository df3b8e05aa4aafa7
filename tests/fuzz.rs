//! Untrusted input: `dq.toml`, URLs, cron expressions, times, HTTP requests, and data stored by
//! other versions. Random and mutated input is accepted or refused with an error; it never panics.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::handler::Handler;
use axum::http::request::Builder;
use axum::routing::any_service;
use dq::backend::{Announcement, Backend, backend_from_url};
use dq::config::Config;
use dq::{
    Dq, Due, JobId, JobKey, JobRef, MemoryBackend, NewJob, QueueName, ScheduleSpec, SystemClock,
    Timestamp,
};
use dq_ops::{Actor, Ops, Role};
use dq_testkit::fuzz;
use dq_web::Auth;

#[test]
fn configurations() {
    let valid = [
        r#"backend = { type = "memory" }
           [defaults]
           lease = "30s"
           backoff = { initial = "1s", max = "1h", factor = 2.0, jitter = 0.1 }
           [queues.ORDER]
           concurrency = 4
           max_attempts = 5
           [schedules.nightly]
           queue = "ORDER"
           cron = "30 2 * * *"
           tz = "Europe/Stockholm"
           payload = { a = [1, 2.5, true, "x", 2026-01-01T00:00:00Z] }
           [runner]
           grace = "10s"
           [limits]
           payload = 1048576"#,
        "backend = { type = \"redis\", url = \"redis://:secret@localhost:6379/1\", shards = { ORDER = 4 } }",
        "backend = { type = \"rabbitmq\", url = \"amqps://a:b@h/v\", log_size_mib = 512 }\ndrain = []",
        "backend = { type = \"postgres\", url = \"postgres://shop@localhost/shop\", schema = \"jobs\" }",
        "backend = { type = \"sqlite\", path = \"jobs.db\", durability = \"relaxed\" }",
    ];
    fuzz::check_text("configurations", &valid, |text| {
        // Also formats the error message.
        Config::from_toml(text).map_err(|error| error.to_string()).is_ok()
    });
}

#[test]
fn urls() {
    let valid = [
        "memory:",
        "sqlite:///tmp/jobs.db?durability=relaxed&cache_mib=8",
        "redis://user:pa%40ss@[::1]:6379/3?prefix=shop&response_timeout=5s",
        "rediss+cluster://a:7000,b:7001,c?prefix=shop",
        "redis+sentinel://s1:26379,s2/mymaster/0",
        "redisson://localhost?codec=jackson:com.example.Order&format=legacy",
        "redis-expiry://localhost:6379",
        "postgres://me:pa%40ss@a,b:5433/shop?sslmode=disable&schema=jobs&connections=3",
        "postgresql:///shop?host=/run/postgresql&user=me&response_timeout=5s",
        "amqp://guest:guest@localhost:5672/%2Fshop?prefix=a.b&log_size_mib=64",
        "amqps://user:secret@h1,h2:5671/v",
    ];
    fuzz::check_text("URLs", &valid, |url| {
        // Connecting opens a file; parsing a URL does not.
        backend_from_url(url).map_err(|error| error.to_string()).is_ok()
    });
}

#[test]
fn cron_expressions() {
    let valid = [
        "30 2 * * *\0Europe/Stockholm",
        "*/15 9-17 1,15 JAN-MAR MON-FRI\0UTC",
        "0 0 29 2 *\0Asia/Shanghai",
        "0 0 L * 5#2\0America/New_York",
        "@daily\0UTC",
    ];
    fuzz::check_text("cron expressions", &valid, |text| {
        let (cron, tz) = text.split_once('\0').unwrap_or((text, "UTC"));
        let spec = serde_json::json!({
            "queue": "q", "times": {"cron": cron, "tz": tz}, "payload": null,
            "catch_up": "last", "overlap": "skip",
        });
        let Ok(spec) = serde_json::from_value::<ScheduleSpec>(spec) else { return false };
        for time in [i64::MIN, -1, 0, 1_772_323_200_000, 253_402_300_799_999, i64::MAX] {
            let next = spec.next_after(Timestamp::from_millis(time));
            assert!(
                next.is_none_or(|next| next.as_millis() > time),
                "{cron:?} after {time}: {next:?}"
            );
        }
        true
    });
}

#[test]
fn stored_schedules() {
    let valid = [
        r#"{"queue":"REPORT","times":{"cron":"30 2 * * *","tz":"Europe/Stockholm"},"payload":{"a":[1,null]},"catch_up":"all:3","overlap":"queue_one","deadline":3600000}"#,
        r#"{"queue":"q","times":{"every":90000},"payload":null,"catch_up":"last","overlap":"skip","jitter":10}"#,
    ];
    fuzz::check_text("stored schedules", &valid, |json| {
        let Ok(spec) = serde_json::from_str::<ScheduleSpec>(json) else { return false };
        for time in [i64::MIN, 0, i64::MAX] {
            let _ = spec.next_after(Timestamp::from_millis(time));
        }
        true
    });
}

#[test]
fn texts_of_operators() {
    let time = "2027-01-31T10:00:00.123+02:00";
    fuzz::check_text("times", &[time], |text| dq_ops::parse_timestamp(text).is_ok());
    let due = ["15m", "1h 30m", "now", "9999d", time];
    fuzz::check_text("due times", &due, |text| dq_ops::parse_due(text).is_ok());
    let queues = ["ORDER_TIMEOUT", "base64:T1JERVI"];
    fuzz::check_text("queues", &queues, |text| dq_ops::parse_queue(text).is_ok());
    let targets = ["0190b3e2-7a4f-7c11-8d2e-3f1a5b6c7d8e", "key:order-1", "key-base64:b3JkZXI"];
    fuzz::check_text("jobs", &targets, |text| dq_ops::parse_target(text).is_ok());
}

/// An in-memory store with a client. Writes directly to the store bypass this client's checks.
async fn memory() -> (Arc<MemoryBackend>, Dq) {
    let store = Arc::new(MemoryBackend::new(Arc::new(SystemClock)));
    let dq = Dq::builder().backend(store.clone()).connect().await.expect("a store in memory");
    (store, dq)
}

fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts")
}

#[test]
fn announcements_of_runners() {
    let valid = [
        r#"{"format":1,"host":"h","pid":8,"version":"0.1.0","started":0,"stopping":false,"concurrency":18446744073709551615,"running":0,"skew_ms":null,"queues":[{"queue":"Q","concurrency":18446744073709551615,"running":0,"lateness":[],"run_time":[]},{"queue":"R","concurrency":18446744073709551615,"running":0,"lateness":[],"run_time":[]}],"omitted_queues":0}"#,
        r#"{"format":1,"host":"h","pid":7,"version":"0.1.0","started":1000,"stopping":false,"concurrency":256,"running":1,"skew_ms":-3,"claim_ms":12,"queues":[{"queue":"Q","concurrency":16,"running":1,"lateness":[2,1],"run_time":[],"objective":{"objective":"99% < 100ms","in_time":3,"late":1}}],"omitted_queues":0}"#,
    ];
    let runtime = runtime();
    let (store, dq) = runtime.block_on(memory());
    let ops = Ops::new(dq.clone()).session(Actor::new("ada", Role::Admin));
    let is_read = |info: &[u8]| {
        runtime.block_on(async {
            for name in ["web-1", "web-2"] {
                let announcement = Announcement::new(name, info.to_vec(), Duration::from_secs(60));
                store.announce(announcement).await.expect("any bytes are stored");
            }
            let seen = dq.runners().await.expect("an unreadable one is an entry of its own");
            ops.overview().await.expect("slots and quantiles are calculated");
            assert_eq!(seen.len(), 2);
            seen.iter().all(|runner| runner.info.is_ok())
        })
    };
    fuzz::check("announcements of runners", &valid, is_read);
}

#[test]
fn stored_jobs_of_schedules() {
    let valid = [
        r#"{"format":1,"spec":{"queue":"REPORT","times":{"every":90000},"payload":null,"catch_up":"last","overlap":"skip"},"cursor":1000,"waiting":2000,"last":1000,"skipped":900,"declared":{"generation":2,"seen":1000},"writer":0}"#,
    ];
    let runtime = runtime();
    let is_read = |payload: &[u8]| {
        runtime.block_on(async {
            let (store, dq) = memory().await;
            let (id, queue) = (JobId::from_bytes([7; 16]), QueueName::new("dq.schedules"));
            let queue = queue.expect("a valid name");
            let due = Due::After(Duration::from_secs(60));
            let new = NewJob::new(id, queue, due, payload.to_vec().into());
            let new = new.key(JobKey::new("nightly").expect("a valid key"));
            let _ = store.schedule(vec![new]).await.expect("it is stored");
            let listed = dq.schedules().await.expect("it is listed, or left out");
            let unreadable = dq.unreadable_schedules().await.expect("it is left out, or listed");
            assert_eq!(listed.len() + unreadable.len(), 1);
            listed.len() == 1
        })
    };
    fuzz::check("stored jobs of schedules", &valid, is_read);
}

#[test]
fn payloads_with_headers() {
    let valid = [
        r#""dq-envelope-1 {\"headers\":{\"dq-step\":\"2\"},\"payload\":{\"text\":\"{}\"}}""#,
        r#""dq-envelope-1 {\"headers\":{},\"payload\":{\"latin1\":\"\u00ff\"}}""#,
    ];
    let runtime = runtime();
    let read = |payload: &[u8]| {
        runtime.block_on(async {
            let (store, dq) = memory().await;
            let id = JobId::from_bytes([7; 16]);
            let queue = QueueName::new("q").expect("a valid name");
            let new = NewJob::new(id, queue.clone(), Due::NOW, payload.to_vec().into());
            let _ = store.schedule(vec![new]).await.expect("it is stored");
            let view = dq.backend().get(&JobRef::new(queue, id)).await.expect("it is read");
            view.expect("it is in the store").job.payload
        })
    };
    assert_eq!(valid.map(|payload| read(payload.as_bytes())), [&b"{}"[..], &[0xff]]);
    // Data without an envelope is a payload.
    fuzz::check("payloads with headers", &valid, |payload| {
        read(payload);
        true
    });
}

const TOKEN: &str = "admin-0123456789";

fn request(method: &str, path: &str) -> Builder {
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("authorization", format!("Bearer {TOKEN}"))
        .header("content-type", "application/json")
}

/// Sends requests to the dashboard and API router. None may get a 5xx status. `make_request`
/// returns `None` if HTTP does not allow the input.
fn check_requests(name: &str, valid: &[&str], make_request: impl Fn(&[u8]) -> Option<Request>) {
    let runtime = runtime();
    let (store, dq) = runtime.block_on(memory());
    let auth = Auth::token(Actor::new("ada", Role::Admin), TOKEN).expect("a valid token");
    let service = any_service(dq_web::router(Ops::new(dq), auth));
    let queue = QueueName::new("ORDER").expect("a valid name");
    let due = Due::After(Duration::from_secs(3_600));
    let new = NewJob::new(JobId::from_bytes([7; 16]), queue, due, b"4711".to_vec().into());
    let new = new.key(JobKey::new("order-4711").expect("a valid key"));
    fuzz::check(name, valid, |bytes| {
        let Some(request) = make_request(bytes) else { return false };
        let response = runtime.block_on(async {
            // Earlier requests may have ended it or taken its key.
            let _ =
                store.schedule(vec![new.clone()]).await.expect("it is stored, or another one is");
            Handler::call(service.clone(), request, ()).await
        });
        let status = response.status();
        assert!(!status.is_server_error(), "{status}");
        status.is_success()
    });
}

fn check_bodies(path: &str, valid: &[&str]) {
    check_requests(&format!("bodies for {path}"), valid, |input| {
        request("POST", path).body(Body::from(input.to_vec())).ok()
    });
}

#[test]
fn bodies_of_new_jobs() {
    let valid = [
        r#"{"payload":{"order":4711},"key":"order-4711","due":"30m","headers":{"a":"b"}}"#,
        r#"{"payload_base64":"AAEC","content_type":"image/png","due":"2027-01-31T10:00:00Z","key":"order-1","on_conflict":"latest","on_running":"detach","max_attempts":3,"remember":"7d"}"#,
    ];
    check_bodies("/v1/queues/ORDER/jobs", &valid);
}

#[test]
fn bodies_of_actions() {
    let some =
        r#"{"filter":{"key_prefix":"order-","due_before":"2027-01-31T10:00:00Z"},"expected":3}"#;
    let count = r#"{"filter":{"error":"refused"},"dry_run":true}"#;
    let moved = r#"{"filter":{"due_from":"2020-01-31T10:00:00Z"},"due":"5m"}"#;
    let simulated = r#"{"window":"3h","default_concurrency":4,"default_run_time":"1s","load":2}"#;
    for (path, valid) in [
        ("/v1/queues/ORDER:pause", &["{}"][..]),
        ("/v1/queues/ORDER/jobs:cancel", &[count, some, r#"{"all":true}"#]),
        ("/v1/queues/ORDER/jobs:reschedule", &[moved]),
        ("/v1/queues/ORDER:purge", &[r#"{"confirm":"ORDER"}"#]),
        ("/v1/simulate", &[simulated]),
    ] {
        check_bodies(path, valid);
    }
}

#[test]
fn paths_and_queries() {
    let valid = [
        "/v1/queues/ORDER/jobs?state=scheduled&limit=10&order=desc&key_prefix=order&contains=47",
        "/v1/queues/ORDER/jobs?due_from=2027-01-31T10:00:00Z&due_before=2037-01-31T10:00:00Z&error=x&state=dead",
        "/v1/queues/ORDER/jobs/key:order-4711/timeline",
        "/v1/queues/base64:T1JERVI/jobs/key-base64:b3JkZXItNDcxMQ",
        "/v1/queues/ORDER/forecast?window=24h&steps=12",
        "/v1/queues/ORDER/dead",
        "/v1/forecast?window=3h",
        "/v1/audit?limit=5",
        "/jobs?queue=ORDER&state=dead&find=%F0%9F%98%80",
        "/job?queue=ORDER&id=07070707-0707-0707-0707-070707070707",
        "/?lang=zh",
    ];
    check_requests("paths and queries", &valid, |input| {
        request("GET", str::from_utf8(input).ok()?).body(Body::empty()).ok()
    });
}

#[test]
fn idempotency_keys() {
    let valid = ["order-4711", "8e03978e-40d5-43e8-bc93-6894a57f9324"];
    check_requests("idempotency keys", &valid, |input| {
        let post = request("POST", "/v1/queues/ORDER/jobs").header("idempotency-key", input);
        post.body(Body::from(r#"{"payload":1}"#)).ok()
    });
}
