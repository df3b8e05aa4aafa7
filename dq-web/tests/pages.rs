use crate::support::{ADMIN, Fixture, OPERATOR, VIEWER, sample};
use dq_core::{DeadKind, DeadReason, Due, DurationExt, Verdict};

async fn page(fixture: &Fixture, path: &str) -> String {
    let reply = fixture.get(ADMIN, path).await;
    assert_eq!(reply.status, 200, "{path}: {reply:?}");
    reply.body
}

/// Returns each text's position; the page must have all of them.
#[track_caller]
fn positions(page: &str, texts: &[&str]) -> Vec<usize> {
    let position = |text: &&str| page.find(*text).unwrap_or_else(|| panic!("{text}:\n{page}"));
    texts.iter().map(position).collect()
}

#[track_caller]
fn assert_order(page: &str, texts: &[&str]) {
    assert!(positions(page, texts).is_sorted(), "{texts:?}:\n{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_opens_on_all_queues_with_the_newest_problems_first() {
    let fixture = Fixture::start("").await;
    let empty = page(&fixture, "/jobs").await;
    assert!(empty.contains("Nothing waits, runs or is dead."), "{empty}");
    fixture.schedule("AAA", "in-an-hour", "1", Due::After(1.hours())).await;
    fixture.schedule("AAA", "in-a-minute", "1", Due::After(1.minutes())).await;
    fixture.dead("MAIL", "died-first", "boom").await;
    fixture.clock.advance(5.seconds());
    let job = fixture.schedule("SMS", "foreign", "1", Due::NOW).await;
    for leased in fixture.claim("SMS", "web-1").await {
        let reason = DeadReason::new(DeadKind::Quarantined, "not a job");
        fixture.settle(&leased, Verdict::Dead { reason, failed: true }).await;
    }
    fixture.schedule("WORK", "runs", "1", Due::NOW).await;
    assert_eq!(fixture.claim("WORK", "web-1").await.len(), 1);
    fixture.schedule("MAIL", "late", "1", Due::NOW).await;
    fixture.clock.advance(5.seconds());
    let jobs = page(&fixture, "/jobs").await;
    let rows = &jobs[jobs.find("id=\"rows\"").unwrap()..];
    let order = ["foreign", "died-first", "late", "runs", "in-a-minute", "in-an-hour"];
    assert_order(rows, &order);
    assert!(rows.contains("quarantined") && rows.contains("queue?name=WORK"), "{rows}");
    assert!(rows.contains(&job.to_string()), "{rows}");
    // One state in all queues, then all states in one queue.
    let dead = page(&fixture, "/jobs?state=dead").await;
    assert_order(&dead, &["foreign", "died-first"]);
    assert!(!dead.contains("in-a-minute"), "{dead}");
    let mail = page(&fixture, "/jobs?queue=MAIL").await;
    assert_order(&mail[mail.find("id=\"rows\"").unwrap()..], &["died-first", "late"]);
    assert!(!mail.contains("foreign"), "{mail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_found_by_its_id_or_key_in_any_queue() {
    let fixture = Fixture::start("").await;
    fixture.schedule("MAIL", "order-17", "1", Due::After(1.hours())).await;
    fixture.schedule("SMS", "order-170", "1", Due::After(1.hours())).await;
    let dead = fixture.dead("ZZZ", "order-9", "boom").await;
    let found = async |text: &str| {
        let reply = fixture.get(ADMIN, &format!("/jobs?find={text}")).await;
        (reply.status, reply.header("location").unwrap_or_default().to_owned(), reply.body)
    };
    // By id, whatever the list's queue.
    for path in [dead.to_string(), format!("%20{dead}&queue=MAIL&state=scheduled")] {
        let (status, location, _) = found(&path).await;
        assert_eq!((status, location), (303, format!("job?queue=ZZZ&id={dead}")), "{path}");
    }
    // By key prefix, which may be a whole key.
    let (status, _, body) = found("order-17").await;
    assert_eq!(status, 200);
    assert_order(&body[body.find("id=\"rows\"").unwrap()..], &["order-17<", "order-170<"]);
    let (_, _, body) = found("order-").await;
    assert_order(&body[body.find("id=\"rows\"").unwrap()..], &["order-9<", "order-17<"]);
    // The only job with this key.
    let (status, location, _) = found("order-9").await;
    assert_eq!((status, location), (303, format!("job?queue=ZZZ&id={dead}")));
    let other = "00000000-0000-4000-8000-000000000000";
    for text in ["nobody", other] {
        let (status, _, body) = found(text).await;
        assert_eq!(status, 200, "{body}");
        assert!(body.contains("No job has this id or key."), "{body}");
    }
    // In one queue and state, there is a link to all.
    let (_, _, body) = found("order-9&queue=MAIL&state=ready").await;
    assert!(body.contains("href=\"jobs?find=order-9\""), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_navigation_keeps_the_queue_without_scripts() {
    let fixture = Fixture::start("").await;
    let id = fixture.schedule("MAIL", "one", "1", Due::After(1.hours())).await;
    for path in ["/queue?name=MAIL", &format!("/job?queue=MAIL&id={id}")] {
        let page = page(&fixture, path).await;
        assert!(page.contains("<a href=\"jobs?queue=MAIL\""), "{path}: {page}");
    }
    // On the list itself, the link leads to all queues.
    let jobs = page(&fixture, "/jobs?queue=MAIL&state=scheduled").await;
    assert!(jobs.contains("<a href=\"jobs\" aria-current"), "{jobs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_hundred_queues_the_problems_come_first_and_the_rest_is_found_and_sorted() {
    let fixture = Fixture::start("").await;
    let (long, _) = sample::crowd(&fixture).await;
    let overview = page(&fixture, "/").await;
    let body = |page: &str| page[page.find("<table class=\"rows queues\">").unwrap()..].to_owned();
    // No runner first, then late, then dead.
    let table = body(&overview);
    assert_order(&table, &["TENANT_170_MAIL", &long, "TENANT_150_MAIL", "TENANT_000_MAIL"]);
    assert!(overview.contains("with problems"), "{overview}");
    assert!(
        overview.contains("Scheduled jobs due in 24 hours"),
        "a chart of all queues: {overview}"
    );
    assert_eq!(table.matches("<th scope=\"row\">").count(), 50);
    assert_eq!(body(&page(&fixture, "/?all=1").await).matches("<th scope=\"row\">").count(), 200);
    let found = body(&page(&fixture, "/?find=tenant_19").await);
    assert_eq!(found.matches("<th scope=\"row\">").count(), 9);
    let none = page(&fixture, "/?find=nothing").await;
    assert!(none.contains("No queue has this in its name."), "{none}");
    let sorted = page(&fixture, "/?sort=name&find=tenant_1&all=1").await;
    assert_order(&body(&sorted), &["TENANT_100_MAIL", "TENANT_150_MAIL", "TENANT_170_MAIL"]);
    assert!(sorted.contains("aria-sort=\"ascending\""), "{sorted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_past_is_what_this_server_has_watched_and_says_since_when() {
    let fixture = Fixture::start("").await;
    let chart = |page: &str, name: &str| {
        let from = page.find(&format!("aria-label=\"{name}: ")).unwrap_or_else(|| panic!("{page}"));
        let svg = &page[from..];
        svg[..svg.find("</svg>").unwrap()].to_owned()
    };
    let first = page(&fixture, "/").await;
    assert!(first.contains("this server has watched since"), "{first}");
    assert_eq!(chart(&first, "Done").matches("class=\"gap\"").count(), 60);
    for queue in ["MAIL", "MAIL", "SMS"] {
        fixture.schedule(queue, "job", "1", Due::NOW).await;
        for job in fixture.claim(queue, "web-1").await {
            fixture.settle(&job, Verdict::Done).await;
        }
    }
    fixture.clock.advance(60.seconds());
    let hour = page(&fixture, "/").await;
    let done = chart(&hour, "Done");
    assert!(done.starts_with("aria-label=\"Done: 3\""), "{done}");
    assert!(done.contains("class=\"done\""), "{done}");
    // One or two minutes were watched.
    assert!((58..60).contains(&done.matches("class=\"gap\"").count()), "{done}");
    let mail = page(&fixture, "/queue?name=MAIL&past=day").await;
    assert!(chart(&mail, "Done").starts_with("aria-label=\"Done: 2\""), "{mail}");
    // Six unread minutes are a gap.
    fixture.clock.advance(6.minutes());
    let later = page(&fixture, "/").await;
    let gaps = chart(&later, "Done").matches("class=\"gap\"").count();
    assert!((58..60).contains(&gaps), "{later}");
    fixture.clock.advance(2.hours());
    let gone = page(&fixture, "/").await;
    assert!(!gone.contains("this server has watched since"), "it has for longer than an hour");
    assert_eq!(chart(&gone, "Done").matches("class=\"gap\"").count(), 60);
}

#[tokio::test]
async fn an_empty_history_names_the_setting_unless_a_filter_is_the_reason() {
    let fixture = Fixture::start("").await;
    fixture.schedule("MAIL", "ann", "{}", Due::After(1.hours())).await;
    for (lang, of_setting, of_filter) in [
        ("en", "No ended job is remembered.", "No job matches."),
        ("zh", "history", "没有匹配的任务。"),
    ] {
        let list = format!("/jobs?queue=MAIL&state=ended&lang={lang}");
        let all = fixture.get(VIEWER, &list).await.body;
        assert!(all.contains(of_setting) && !all.contains(of_filter), "{all}");
        let filtered = fixture.get(VIEWER, &format!("{list}&find=zzz")).await.body;
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
    let dead = fixture.get(OPERATOR, "/dead?lang=en").await.body;
    assert_eq!(dead.matches("do=remove").count(), 2, "a short text has no buttons: {dead}");
    assert_eq!(dead.matches("group=1").count(), 4, "{dead}");

    // Two dead jobs contain the text, so a group of one is smaller than the change.
    for (group, warns) in [("&group=1", true), ("&group=2", false), ("", false)] {
        let path = format!("/bulk?queue=MAIL&do=remove&error=charge%20timeout{group}&lang=en");
        let page = fixture.get(OPERATOR, &path).await.body;
        assert_eq!(page.contains("more jobs than the group"), warns, "{group}: {page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_shown_set_by_operators_only_and_exported() {
    let fixture = Fixture::start("").await;
    for number in 0..5 {
        fixture.schedule("MAIL", &format!("mail-{number}"), "1", Due::NOW).await;
    }
    fixture.schedule("FREE", "one", "1", Due::NOW).await;
    let form = "do=limit&queue=MAIL&max_running=3&rate=10/1s+burst+20&group_max_running=&back=./";
    assert_eq!(fixture.submit(VIEWER, form).await.status, 403);
    assert_eq!(fixture.submit(OPERATOR, "do=limit&queue=MAIL&max_running=three").await.status, 400);
    assert_eq!(fixture.submit(OPERATOR, "do=limit&queue=MAIL&max_running=0").await.status, 400);
    assert_eq!(fixture.submit(OPERATOR, form).await.status, 303);
    assert_eq!(fixture.claim("MAIL", "web-1").await.len(), 3);

    let queue = page(&fixture, "/queue?name=MAIL").await;
    for text in ["role=\"meter\"", "3 of 3 at once", "10/1s burst 20", "set by an operator"] {
        assert!(queue.contains(text), "{text}: {queue}");
    }
    assert!(!page(&fixture, "/queue?name=FREE").await.contains("role=\"meter\""));
    assert!(page(&fixture, "/").await.contains("aria-label=\"3 of 3 at once\""));
    let metrics = page(&fixture, "/metrics").await;
    for gauge in
        ["max_running{queue=\"MAIL\"} 3", "rate{queue=\"MAIL\"} 10", "held_back{queue=\"MAIL\"} 2"]
    {
        assert!(metrics.contains(&format!("dq_queue_{gauge}\n")), "{gauge}: {metrics}");
    }
    assert!(!metrics.contains("dq_queue_held_back{queue=\"FREE\"}"), "{metrics}");

    assert_eq!(fixture.submit(OPERATOR, "do=unlimit&queue=MAIL&back=./").await.status, 303);
    assert!(!page(&fixture, "/queue?name=MAIL").await.contains("role=\"meter\""));
    let audit = page(&fixture, "/audit").await;
    assert!(audit.contains("unlimit") && audit.contains("otto"), "{audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_has_a_table_once_there_is_a_write() {
    let fixture = Fixture::start("").await;
    let empty = page(&fixture, "/audit").await;
    assert!(empty.contains("There has been no write yet.") && !empty.contains("<th"), "{empty}");
    fixture.schedule("MAIL", "mail", "1", Due::NOW).await;
    assert_eq!(fixture.submit(OPERATOR, "do=pause&queue=MAIL&back=./").await.status, 303);
    let audit = page(&fixture, "/audit").await;
    assert!(audit.contains("<th") && !audit.contains("There has been no write yet."), "{audit}");
}
