//! A realistic store: queues in all states, failures, runners.

use std::time::Duration;

use dq_core::{Backend, Due, DurationExt, Flow, Histogram, JobId, Operation, QueueName, Verdict};
use dq_ops::{Actor, Role, ScheduleRequest, Session};
use serde_json::{Value, json};

use super::Fixture;

/// Fills the store. Returns an ended job of `ORDER_TIMEOUT`.
pub(crate) async fn fill(fixture: &Fixture) -> JobId {
    let ended = add_past_jobs(fixture).await;
    add_waiting_jobs(fixture, "ORDER_TIMEOUT", "order", 420, 5.minutes()).await;
    add_waiting_jobs(fixture, "SEND_REMINDER", "reminder", 180, 11.minutes()).await;
    add_waiting_jobs(fixture, "TRIAL_ENDS", "account", 60, 90.minutes()).await;
    add_waiting_jobs(fixture, "WEBHOOK_RETRY", "delivery", 25, 40.seconds()).await;
    add_failed_jobs(fixture).await;
    for number in 0..14 {
        fixture.schedule("SYNC_CATALOG", &format!("shop-{number}"), "{}", Due::NOW).await;
    }
    fixture.clock.advance(4.seconds());
    for number in 0..6 {
        let payload = json!({"export": number, "format": "csv"}).to_string();
        fixture.schedule("EXPORT", &format!("export-{number}"), &payload, Due::NOW).await;
    }
    fixture.claim("EXPORT", "worker-2").await;
    fixture.schedule("NIGHTLY_REPORT", "report", "{}", Due::After(9.hours())).await;
    add_limited_queues(fixture).await;
    let admin = admin(fixture);
    admin.pause(&QueueName::new("NIGHTLY_REPORT").unwrap()).await.unwrap();
    for (name, definition) in [
        (
            "nightly-report",
            json!({
                "queue": "NIGHTLY_REPORT", "cron": "30 2 * * *", "tz": "Europe/Stockholm",
                "payload": {"region": "eu", "format": "pdf"}, "deadline": "6h", "jitter": "90s",
            }),
        ),
        ("catalog-sync", json!({"queue": "SYNC_CATALOG", "every": "15m", "overlap": "queue_one"})),
        (
            "weekly-digest",
            json!({"queue": "SEND_REMINDER", "cron": "0 9 * * MON-FRI", "tz": "America/New_York"}),
        ),
        ("monthly-invoices", json!({"queue": "EXPORT", "cron": "0 6 1 * *", "catch_up": "all:3"})),
    ] {
        put_schedule(&admin, name, definition).await;
    }
    admin.pause_schedule("weekly-digest").await.unwrap();
    fixture.clock.advance(1_200.millis());
    let queues = [served("ORDER_TIMEOUT", 3, 8, 0), served("SEND_REMINDER", 1, 4, 0)];
    announce(fixture, "worker-1", &queues).await;
    let queues = [
        served("EXPORT", 6, 6, 0),
        served("WEBHOOK_RETRY", 0, 8, 0),
        served("TRIAL_ENDS", 0, 2, 0),
        served("IMPORT_ROW", 5, 8, 0),
        served("SEND_SMS", 0, 8, 0),
    ];
    announce(fixture, "worker-2", &queues).await;
    let started = fixture.store.now().await.unwrap().as_millis() - 3_600_000;
    let fields = json!({
        "host": "jobs.internal", "started": started, "concurrency": 24, "running": 5,
        "queues": [served("CHARGE_CARD", 5, 24, 0)],
        "workers": [
            {"name": "billing-7f3", "running": 3}, {"name": "billing-a01", "running": 2},
            {"name": "reports-1", "running": 0},
        ],
    });
    fixture.announce("serve-1", fields).await;
    ended
}

/// Creates 199 queues, some with problems, and one queue with the longest possible names. Returns
/// the latter's name and its dead job.
pub(crate) async fn crowd(fixture: &Fixture) -> (String, JobId) {
    let long = "MONTHLY_RECONCILIATION_OF_PAYMENTS_".repeat(4)[..128].to_owned();
    for number in 0..199_u64 {
        let queue = format!("TENANT_{number:03}_MAIL");
        for job in 0..1 + number % 3 {
            let due = Due::After((1 + (number * 7 + job) % 30).hours());
            fixture.schedule(&queue, &format!("mail-{job}"), "{}", due).await;
        }
    }
    fixture.dead("TENANT_150_MAIL", "lost", "connect to mail.example.org:25 refused").await;
    fixture.schedule("TENANT_170_MAIL", "waits", "{}", Due::NOW).await;
    let error =
        format!("HTTP 503 from https://{}.example.org/: {}", "a".repeat(60), "no ".repeat(80));
    let job = fixture.dead(&long, &format!("{}-dead", &long[..120]), &error).await;
    fixture.schedule(&long, &long, "{}", Due::NOW).await;
    fixture.clock.advance(90.seconds());
    fixture.schedule(&long, "later", "{}", Due::After(5.hours())).await;
    let session = fixture.ops.session(Actor::new(&long, Role::Admin));
    let definition =
        json!({"queue": long, "cron": "30 2 * * *", "tz": "America/Argentina/ComodRivadavia"});
    put_schedule(&session, &long, definition).await;
    session.pause(&QueueName::new("TENANT_180_MAIL").unwrap()).await.unwrap();
    // Queue 170 has a job that is due, but no runner.
    let tenants: Vec<_> = (0..199).filter(|number| *number != 170).collect();
    // An announcement has limited length.
    for (runner, tenants) in [&long[..100], "worker-2"].into_iter().zip(tenants.chunks(99)) {
        let queues =
            tenants.iter().map(|number| served(&format!("TENANT_{number:03}_MAIL"), 1, 4, 0));
        let queues: Vec<_> = queues.chain([served(&long, 2, 4, 0)]).collect();
        announce(fixture, runner, &queues).await;
    }
    (long, job)
}

fn admin(fixture: &Fixture) -> Session {
    fixture.ops.session(Actor::new("ada", Role::Admin))
}

async fn put_schedule(session: &Session, name: &str, definition: Value) {
    let definition = serde_json::from_value(definition).unwrap();
    assert!(session.put_schedule(name, &definition).await.unwrap());
}

/// Simulates half an hour of jobs, with an unwatched gap. Returns the last job.
async fn add_past_jobs(fixture: &Fixture) -> JobId {
    let queue = "ORDER_TIMEOUT";
    let (mut failed, mut last) = (0, None);
    for minute in 0..34_u64 {
        for number in 0..9 + minute * minute % 13 {
            let key = format!("paid-{minute}-{number}");
            last = Some(fixture.schedule(queue, &key, "{}", Due::NOW).await);
        }
        for (number, job) in fixture.claim(queue, "worker-1").await.iter().enumerate() {
            let verdict = match number % 3 {
                0 => Verdict::skip("the order was paid in time"),
                _ => Verdict::Done,
            };
            fixture.settle(job, verdict).await;
        }
        failed += u64::from(minute % 9 == 4) * minute;
        fixture.clock.advance(1.minutes());
        announce(fixture, "worker-1", &[served(queue, minute * minute % 11, 8, failed)]).await;
        if !(12..20).contains(&minute) {
            admin(fixture).overview().await.unwrap();
        }
    }
    last.unwrap()
}

async fn add_waiting_jobs(fixture: &Fixture, queue: &str, key: &str, count: u64, step: Duration) {
    for number in 0..count {
        let payload = json!({
            "id": 4_000 + number, "customer": {"name": "Ada Lovelace", "mail": "ada@example.org"},
            "amount": format!("{}.90", 12 + number % 70), "currency": "EUR",
        });
        let mut request = ScheduleRequest::new(payload.to_string());
        request.key = Some(format!("{key}-{}", 4_000 + number));
        // Some hours get more jobs than others.
        let wave = (number % 7) * (number % 5) * 60_000;
        request.due = Due::After(step * u32::try_from(number + 1).unwrap() + wave.millis());
        request.max_attempts = Some(5);
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        request.headers.insert("traceparent".to_owned(), trace.to_owned());
        admin(fixture).schedule(&QueueName::new(queue).unwrap(), request).await.unwrap();
    }
}

/// A queue with groups that wait, one with a full limit and an operator's, and a throttled one.
async fn add_limited_queues(fixture: &Fixture) {
    let rate = |text: &str| Flow::UNLIMITED.rate(text.parse().unwrap());
    let declare = async |queue: &str, flow: Flow| {
        let queue = &QueueName::new(queue).unwrap();
        fixture.store.operate(Operation::DeclareFlow { queue, flow }).await.unwrap();
    };
    declare("IMPORT_ROW", rate("10/1m burst 5").max_running(8).group_max_running(2)).await;
    declare("EXPORT", Flow::UNLIMITED.max_running(4)).await;
    declare("SEND_SMS", rate("10/1s")).await;
    let change = serde_json::from_value(json!({"max_running": 6})).unwrap();
    admin(fixture).limit(&QueueName::new("EXPORT").unwrap(), change).await.unwrap();
    for (group, rows) in [("tenant-42", 40), ("tenant-7", 9), ("tenant-1001", 3)] {
        for row in 0..rows {
            let mut request = ScheduleRequest::new(json!({"row": row}).to_string());
            request.group = Some(group.to_owned());
            admin(fixture).schedule(&QueueName::new("IMPORT_ROW").unwrap(), request).await.unwrap();
        }
        fixture.clock.advance(300.millis());
    }
    fixture.claim("IMPORT_ROW", "worker-2").await;
    for number in 0..20 {
        fixture.schedule("SEND_SMS", &format!("sms-{number}"), "{}", Due::NOW).await;
    }
    for job in fixture.claim("SEND_SMS", "worker-2").await {
        fixture.settle(&job, Verdict::Throttle(Due::After(5.minutes()))).await;
    }
}

async fn add_failed_jobs(fixture: &Fixture) {
    let reasons = [
        "connect to mail.example.org:25 refused after 3 attempts",
        "connect to mail.example.org:25 refused after 5 attempts",
        "HTTP 410 from https://hooks.example.org/v2/4711: the endpoint is gone",
        "connect to mail.example.org:25 refused after 4 attempts",
        "missing field `address` at line 1 column 57",
    ];
    for number in 0..17 {
        for queue in ["SEND_REMINDER", "WEBHOOK_RETRY"].iter().take(1 + number % 2) {
            fixture.dead(queue, &format!("lost-{number}"), reasons[number % reasons.len()]).await;
        }
        fixture.clock.advance(13.seconds());
    }
    let payload = r#"{"id": 4711, "url": "https://hooks.example.org/v2/orders"}"#;
    fixture.schedule("WEBHOOK_RETRY", "order-4711", payload, Due::NOW).await;
    fixture.clock.advance(4.millis());
    for job in fixture.claim("WEBHOOK_RETRY", "worker-2").await {
        let error = "HTTP 503 from https://hooks.example.org/v2/orders: upstream connect error";
        fixture.settle(&job, Verdict::retry(Due::After(30.seconds()), error)).await;
    }
}

fn served(queue: &str, running: u64, concurrency: u64, failed: u64) -> Value {
    // Nine durations in turn: `shortest`, then each a third of it longer.
    let histogram = |shortest: u64, count: u64| {
        let mut histogram = Histogram::default();
        for number in 0..count {
            histogram.record((shortest + number % 9 * shortest / 3).millis());
        }
        histogram
    };
    json!({
        "queue": queue, "running": running, "concurrency": concurrency, "failed": failed,
        "lateness": histogram(2 + running * 7, 120 + concurrency * 40),
        "run_time": histogram(45, 160),
        "objective": {
            "objective": "99% < 150ms", "in_time": 1_840, "late": running * 9, "cause": "slots_full",
        },
    })
}

async fn announce(fixture: &Fixture, name: &str, queues: &[Value]) {
    let running: u64 = queues.iter().filter_map(|queue| queue["running"].as_u64()).sum();
    // Started at midnight of the day before.
    let now = fixture.store.now().await.unwrap().as_millis();
    let started = now / 86_400_000 * 86_400_000 - 86_400_000;
    let fields = json!({
        "host": format!("{name}.internal"), "pid": 4_194_304, "started": started,
        "concurrency": 16, "running": running, "skew_ms": -3, "queues": queues,
    });
    fixture.announce(name, fields).await;
}
