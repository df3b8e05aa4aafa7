//! A realistic store: queues in all states, failures, runners.

use std::time::Duration;

use dq_core::{
    Announcement, Backend, DeadKind, DeadReason, Due, DurationExt, Histogram, JobId, QueueName,
    Verdict,
};
use dq_ops::{Actor, Role, ScheduleRequest};
use serde_json::json;

use super::Fixture;

/// Fills the store. Returns an ended job of `ORDER_TIMEOUT`.
pub(crate) async fn fill(fixture: &Fixture) -> JobId {
    add_past_jobs(fixture).await;
    add_waiting_jobs(fixture, "ORDER_TIMEOUT", "order", 420, 5.minutes()).await;
    add_waiting_jobs(fixture, "SEND_REMINDER", "reminder", 180, 11.minutes()).await;
    add_waiting_jobs(fixture, "TRIAL_ENDS", "account", 60, 90.minutes()).await;
    add_waiting_jobs(fixture, "WEBHOOK_RETRY", "delivery", 25, 40.seconds()).await;
    let paid = add_ended_jobs(fixture, "ORDER_TIMEOUT", 30).await;
    add_dead_jobs(fixture).await;
    add_retried_job(fixture).await;
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
    let admin = fixture.ops.session(Actor::new("ada", Role::Admin));
    admin.pause(&QueueName::new("NIGHTLY_REPORT").unwrap()).await.unwrap();
    add_schedules(fixture).await;
    fixture.clock.advance(1_200.millis());
    let served = [
        ServedQueue { queue: "ORDER_TIMEOUT", running: 3, concurrency: 8 },
        ServedQueue { queue: "SEND_REMINDER", running: 1, concurrency: 4 },
    ];
    announce(fixture, "worker-1", 812, 0, &served).await;
    let served = [
        ServedQueue { queue: "EXPORT", running: 6, concurrency: 6 },
        ServedQueue { queue: "WEBHOOK_RETRY", running: 0, concurrency: 8 },
        ServedQueue { queue: "TRIAL_ENDS", running: 0, concurrency: 2 },
    ];
    announce(fixture, "worker-2", 1_377, 0, &served).await;
    paid
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
    let definition = serde_json::from_value(definition).unwrap();
    assert!(session.put_schedule(&long, &definition).await.unwrap());
    session.pause(&QueueName::new("TENANT_180_MAIL").unwrap()).await.unwrap();
    // Queue 170 has a job that is due, but no runner.
    let tenants: Vec<_> = (0..199).filter(|number| *number != 170).collect();
    let tenants: Vec<_> = tenants.iter().map(|number| format!("TENANT_{number:03}_MAIL")).collect();
    // An announcement has limited length.
    for (runner, tenants) in [&long[..100], "worker-2"].into_iter().zip(tenants.chunks(99)) {
        let served = tenants.iter().map(|queue| ServedQueue { queue, running: 1, concurrency: 4 });
        let long = ServedQueue { queue: &long, running: 2, concurrency: 4 };
        let served: Vec<_> = served.chain([long]).collect();
        announce(fixture, runner, 4_194_304, 0, &served).await;
    }
    (long, job)
}

/// Simulates half an hour of jobs, with an unwatched gap.
async fn add_past_jobs(fixture: &Fixture) {
    let session = fixture.ops.session(Actor::new("ada", Role::Viewer));
    let queue = "ORDER_TIMEOUT";
    let mut failed = 0;
    for minute in 0..34_u64 {
        for number in 0..9 + minute * minute % 13 {
            fixture.schedule(queue, &format!("paid-{minute}-{number}"), "{}", Due::NOW).await;
        }
        for job in fixture.claim(queue, "worker-1").await {
            fixture.settle(&job, Verdict::Done).await;
        }
        failed += u64::from(minute % 9 == 4) * minute;
        let busy = minute * minute % 11;
        fixture.clock.advance(1.minutes());
        let served = ServedQueue { queue, running: busy, concurrency: 8 };
        announce(fixture, "worker-1", 812, failed, &[served]).await;
        if !(12..20).contains(&minute) {
            session.overview().await.unwrap();
        }
    }
}

async fn add_schedules(fixture: &Fixture) {
    let session = fixture.ops.session(Actor::new("ada", Role::Admin));
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
        let definition = serde_json::from_value(definition).unwrap();
        assert!(session.put_schedule(name, &definition).await.unwrap());
    }
    session.pause_schedule("weekly-digest").await.unwrap();
}

async fn add_waiting_jobs(fixture: &Fixture, queue: &str, key: &str, count: u64, step: Duration) {
    let session = fixture.ops.session(Actor::new("shop", Role::Operator));
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
        request.headers.insert(
            "traceparent".to_owned(),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned(),
        );
        session.schedule(&QueueName::new(queue).unwrap(), request).await.unwrap();
    }
}

/// Returns the last job.
async fn add_ended_jobs(fixture: &Fixture, queue: &str, count: u64) -> JobId {
    let mut last = None;
    for number in 0..count {
        last = Some(fixture.schedule(queue, &format!("paid-{number}"), "{}", Due::NOW).await);
        for job in fixture.claim(queue, "worker-1").await {
            let verdict = match number % 3 {
                0 => Verdict::skip("the order was paid in time"),
                _ => Verdict::Done,
            };
            fixture.settle(&job, verdict).await;
        }
        fixture.clock.advance(7.seconds());
    }
    last.expect("at least one job")
}

async fn add_dead_jobs(fixture: &Fixture) {
    let reasons = [
        "connect to mail.example.org:25 refused after 3 attempts",
        "connect to mail.example.org:25 refused after 5 attempts",
        "HTTP 410 from https://hooks.example.org/v2/4711: the endpoint is gone",
        "connect to mail.example.org:25 refused after 4 attempts",
        "missing field `address` at line 1 column 57",
    ];
    for number in 0..17 {
        let reason = reasons[number % reasons.len()];
        let kind =
            if reason.starts_with("missing") { DeadKind::Undecodable } else { DeadKind::Exhausted };
        for queue in ["SEND_REMINDER", "WEBHOOK_RETRY"].iter().take(1 + number % 2) {
            fixture.schedule(queue, &format!("lost-{number}"), "{\"try\": 5}", Due::NOW).await;
            for job in fixture.claim(queue, "worker-1").await {
                let reason = DeadReason::new(kind, reason);
                fixture.settle(&job, Verdict::Dead { reason, failed: true }).await;
            }
        }
        fixture.clock.advance(13.seconds());
    }
}

/// The job failed once and waits for its retry.
async fn add_retried_job(fixture: &Fixture) {
    let payload = "{\"id\": 4711, \"url\": \"https://hooks.example.org/v2/orders\"}";
    fixture.schedule("WEBHOOK_RETRY", "order-4711", payload, Due::NOW).await;
    fixture.clock.advance(4.millis());
    for job in fixture.claim("WEBHOOK_RETRY", "worker-2").await {
        let error = "HTTP 503 from https://hooks.example.org/v2/orders: upstream connect error";
        fixture.settle(&job, Verdict::retry(Due::After(30.seconds()), error)).await;
    }
}

struct ServedQueue<'a> {
    queue: &'a str,
    running: u64,
    concurrency: u64,
}

/// Announces a runner, with failed runs in each of its queues.
async fn announce(
    fixture: &Fixture,
    name: &str,
    pid: u32,
    failed: u64,
    queues: &[ServedQueue<'_>],
) {
    // Nine durations in turn: `shortest`, then each a third of it longer.
    let histogram = |shortest: u64, count: u64| {
        let mut histogram = Histogram::default();
        for number in 0..count {
            let step = number % 9;
            histogram.record((shortest + step * shortest / 3).millis());
        }
        histogram
    };
    let queues: Vec<_> = queues
        .iter()
        .map(|ServedQueue { queue, running, concurrency }| {
            json!({
                "queue": queue, "running": running, "concurrency": concurrency,
                "lateness": histogram(2 + running * 7, 120 + concurrency * 40),
                "run_time": histogram(45, 160),
                "failed": failed,
                "objective": {
                    "objective": "99% < 150ms", "in_time": 1_840, "late": running * 9,
                    "cause": "slots_full",
                },
            })
        })
        .collect();
    let running: u64 = queues.iter().filter_map(|queue| queue["running"].as_u64()).sum();
    // Started at midnight of the day before.
    let now = fixture.store.now().await.unwrap().as_millis();
    let started = now / 86_400_000 * 86_400_000 - 86_400_000;
    let info = json!({
        "format": 1, "host": format!("{name}.internal"), "pid": pid, "version": "0.1.0",
        "started": started, "stopping": false, "concurrency": 16,
        "running": running, "skew_ms": -3, "queues": queues, "omitted_queues": 0,
    });
    let announcement = Announcement::new(name, info.to_string(), 60.seconds());
    fixture.store.announce(announcement).await.unwrap();
}
