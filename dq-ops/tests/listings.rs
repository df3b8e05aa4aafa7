use std::time::Duration;

use dq_core::{DeadKind, DeadReason, Due, DurationExt, ErrorKind, JobState, Target, Verdict};
use dq_ops::{Actor, BulkAction, JobQuery, OpsError, Role, ScheduleRequest};
use serde_json::json;

use crate::fixture::{Fixture, filter, key, queue, serves_mail};

#[tokio::test]
async fn the_overview_counts_a_slot_once_though_queues_share_it() {
    let fixture = Fixture::new().await;
    let sms = json!({
        "queue": "SMS", "concurrency": 4, "running": 0, "lateness": [], "run_time": [],
    });
    for (name, stopping, running) in [("web-1", false, 5), ("web-2", false, 0), ("web-3", true, 0)]
    {
        let queues = json!([serves_mail(6, running), sms]);
        let fields = json!({"stopping": stopping, "running": running, "queues": queues});
        fixture.announce(name, fields).await;
    }

    let overview = fixture.session(Role::Viewer).overview().await.unwrap();

    // web-1 has 1 slot for MAIL, and 3 for both queues; web-2 has 6, 4, and 8 for both.
    let free_slots = overview.queues.iter().map(|queue| queue.free_slots);
    assert_eq!(free_slots.collect::<Vec<_>>(), [Some(1 + 6), Some(3 + 4)]);
    assert_eq!(overview.free_slots, Some(3 + 8));
}

#[tokio::test]
async fn a_key_leads_to_the_live_job_or_else_to_the_one_that_had_it_last() {
    let fixture = Fixture::new().await;
    let session = fixture.session(Role::Viewer);
    let found = async |text: &str| {
        let detail = session.job(&fixture.queue, &key(text)).await?.job;
        let timeline = session.timeline(&fixture.queue, &key(text)).await?.job;
        assert_eq!(timeline, detail);
        Ok::<_, OpsError>((detail.id, detail.state))
    };
    let dead = Verdict::dead(DeadReason::new(DeadKind::Rejected, "no"));
    fixture.schedule("170", Due::After(1.hours())).await;
    let missing = found("17").await.unwrap_err();
    assert!(matches!(missing, OpsError::NotFound { job: Some(_), .. }), "{missing}");

    for (verdict, state) in [
        (Verdict::Done, JobState::Ended),
        (dead.clone(), JobState::Dead),
        (Verdict::skip("paid"), JobState::Ended),
    ] {
        let id = fixture.schedule("17", Due::NOW).await;
        assert_eq!(found("17").await.unwrap(), (id, JobState::Ready));
        fixture.run_all(verdict).await;
        fixture.clock.advance(1.seconds());
        assert_eq!(found("17").await.unwrap(), (id, state));
    }
    assert!(session.job(&queue("OTHER"), &key("17")).await.is_err());

    // 5,000 jobs die after this one.
    let old = fixture.schedule("old", Due::NOW).await;
    fixture.run_all(dead.clone()).await;
    for _ in 0..50 {
        for number in 0..100 {
            fixture.schedule(&format!("new-{number}"), Due::NOW).await;
        }
        fixture.run_all(dead.clone()).await;
        fixture.clock.advance(1.seconds());
    }
    assert!(found("old").await.is_err());
    let by_id = session.job(&fixture.queue, &Target::Id(old)).await.unwrap();
    assert_eq!(by_id.job.state, JobState::Dead);
}

#[tokio::test]
async fn redaction_hides_payloads_and_headers_even_from_a_search() {
    let fixture = Fixture::new().await;
    let mut request = ScheduleRequest::new("{\"card\":\"4111\"}");
    request.headers.insert("secret".to_owned(), "4111".to_owned());
    let id = fixture.admin().schedule(&fixture.queue, request).await.unwrap().id;
    let redacting = fixture.redacting(|content| {
        content.payload = "{\"card\":\"hidden\"}".into();
        content.headers.remove("secret");
    });
    let session = redacting.session(Actor::new("ann", Role::Admin));

    let seen = session.job(&fixture.queue, &Target::Id(id)).await.unwrap();
    let seen = serde_json::to_string(&seen).unwrap();
    assert!(seen.contains("hidden") && !seen.contains("4111"), "{seen}");

    let mut query = JobQuery::new(JobState::Ready);
    query.contains = Some("4111".to_owned());
    assert!(session.jobs(&fixture.queue, &query).await.unwrap().jobs.is_empty());
}

#[tokio::test]
async fn a_listing_by_error_does_not_tell_what_redaction_hides() {
    let fixture = Fixture::new().await;
    fixture.dead(&["mail to ann refused", "disk full"]).await;
    let redacting = fixture.redacting(|content| {
        for text in [&mut content.last_error, &mut content.reason].into_iter().flatten() {
            *text = text.replace("ann", "someone");
        }
    });
    let session = redacting.session(Actor::new("vic", Role::Viewer));

    for (text, found) in [("to a", 0), ("to someone", 1), ("full", 1)] {
        let mut query = JobQuery::new(JobState::Dead);
        query.filter = filter(json!({"error": text}));
        let page = session.jobs(&fixture.queue, &query).await.unwrap();
        assert_eq!(page.jobs.len(), found, "{text}");
    }
}

#[tokio::test]
async fn an_empty_or_endless_text_selects_no_jobs() {
    let fixture = Fixture::new().await;
    fixture.schedule("a", Due::After(1.hours())).await;
    let (admin, mail) = (fixture.admin(), &fixture.queue);
    for text in [String::new(), "a".repeat(4_097)] {
        for field in ["key_prefix", "error"] {
            let filter = filter(json!({ field: text }));
            let count = admin.count(mail, BulkAction::Cancel, &filter).await.err();
            let bulk = admin.bulk(mail, BulkAction::Cancel, &filter, None).await.err();
            let mut query = JobQuery::new(JobState::Scheduled);
            query.filter = filter;
            let listing = admin.jobs(mail, &query).await.err();
            for error in [count, bulk, listing] {
                assert_eq!(error.unwrap().store_kind(), Some(ErrorKind::InvalidInput));
            }
        }
        let mut query = JobQuery::new(JobState::Scheduled);
        query.contains = Some(text);
        assert!(admin.jobs(mail, &query).await.is_err());
    }
    assert_eq!(admin.queue(mail).await.unwrap().scheduled, 1);
}

#[tokio::test]
async fn a_search_finds_each_match_once_however_small_its_pages() {
    let fixture = Fixture::new().await;
    for number in 0..120 {
        let mut request = ScheduleRequest::new(format!("\"{number:03}\""));
        request.due = Due::After(1.hours() + Duration::from_secs(number));
        fixture.admin().schedule(&fixture.queue, request).await.unwrap();
    }
    let mut query = JobQuery::new(JobState::Scheduled);
    query.contains = Some("7\"".to_owned());
    // Clamped to 1.
    query.limit = 0;

    let mut found = 0;
    loop {
        let page = fixture.admin().jobs(&fixture.queue, &query).await.unwrap();
        found += page.jobs.len();
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }

    assert_eq!(found, 12);
}
