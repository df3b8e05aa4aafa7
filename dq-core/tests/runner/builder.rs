//! Validation by a runner before its first job, and by the client before storing a job.

use std::collections::HashMap;

use dq_core::config::{Config, LatePolicy, QueueSettings};
use dq_core::{Dq, DurationExt, ErrorKind, OnConflict};

use crate::runner::fixture::{Fixture, QUEUE, TestHandler};

#[tokio::test]
async fn two_handlers_of_one_code_are_refused_with_both_locations() {
    let fixture = Fixture::new().await;
    // Two objects are two handlers, even of one type and line.
    let runner = fixture.dq.runner();
    let runner = (0..2).fold(runner, |runner, _| runner.handler(TestHandler::done()));
    let error = runner.build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Duplicate);
    assert_eq!(error.message().matches("builder.rs:").count(), 2, "{error}");
}

#[tokio::test]
async fn a_runner_without_handlers_is_refused_with_a_hint_about_linking() {
    let fixture = Fixture::new().await;
    let error = fixture.dq.runner().without_linked_handlers().build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unhandled);
    assert!(error.to_string().contains("use my_handlers as _;"), "{error}");
}

#[tokio::test]
async fn runners_of_one_name_are_told_apart_and_a_bad_name_is_refused() {
    let fixture = Fixture::new().await;
    let build = |name: &str| fixture.dq.runner().name(name).handler(TestHandler::done()).build();
    let names = ["mail", "mail"].map(|name| build(name).unwrap().name().to_owned());
    assert!(names.iter().all(|name| name.starts_with("mail-")), "{names:?}");
    assert_ne!(names[0], names[1]);
    for bad in ["", "two\nlines", &"m".repeat(129)] {
        let error = build(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad:?}");
        assert!(error.to_string().contains("128 bytes"), "{error}");
    }
}

#[tokio::test]
async fn a_configured_queue_without_a_handler_is_refused_unless_excluded_by_only() {
    let config = "[backend]\ntype = \"memory\"\n[queues.ELSEWHERE]\nconcurrency = 2";
    let connect = || Dq::builder().config(Config::from_toml(config).unwrap()).connect();
    let error = connect().await.unwrap().runner().handler(TestHandler::done()).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unhandled);
    let text = error.to_string();
    for part in ["ELSEWHERE", "use my_handlers as _;", ".only("] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let runner = connect().await.unwrap().runner().handler(TestHandler::done()).only([QUEUE]);
    assert!(runner.build().is_ok());
}

#[tokio::test]
async fn settings_out_of_range_or_only_for_the_configuration_are_refused_by_name() {
    let fixture = Fixture::new().await;
    let runner = || fixture.dq.runner().handler(TestHandler::done());
    let history = QueueSettings::new().history(dq_core::HistoryLimit::OFF);
    for (runner, message) in [
        (runner().queue(QUEUE, QueueSettings::new().concurrency(0)), "queue Q: concurrency is 0"),
        (runner().queue(QUEUE, history), "the history of queue Q"),
        (runner().concurrency(0), "runner.concurrency"),
    ] {
        let error = runner.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.message().contains(message), "{message}: {error}");
    }
}

#[tokio::test]
async fn late_policies_that_move_jobs_in_a_ring_are_refused() {
    let fixture = Fixture::new().await;
    let build = |then: &str| {
        let late = |then: &str| {
            QueueSettings::new().late(LatePolicy::new(1.minutes(), then.parse().unwrap()))
        };
        let runner = fixture.dq.runner().handler(TestHandler::done());
        let runner = runner.handler(TestHandler::done().of_queue("OTHER"));
        runner.queue(QUEUE, late("queue:OTHER")).queue("OTHER", late(then)).build()
    };
    let error = build("queue:Q").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.message().contains("in a ring: OTHER, Q, OTHER"), "{error}");
    assert!(error.remedy_text().is_some());
    for then in ["skip", "queue:ELSEWHERE"] {
        assert!(build(then).is_ok());
    }
}

#[tokio::test]
async fn a_job_with_a_policy_for_its_key_but_no_key_is_refused() {
    let fixture = Fixture::new().await;
    let job = fixture.queue().schedule("x", "text/plain").on_conflict(OnConflict::Replace);
    let error = job.await.unwrap_err();
    assert_eq!((error.kind(), error.failed_operation()), (ErrorKind::InvalidInput, "schedule"));
    assert!(error.to_string().contains("no key"), "{error}");
    assert_eq!(fixture.stats().await.stored(), 0);
}

dq_core::queue!(PAIRS: HashMap<(u8, u8), u8> = "Q");

#[tokio::test]
async fn a_payload_that_does_not_encode_fails_its_whole_bulk() {
    let fixture = Fixture::new().await;
    let good = fixture.queue().schedule("x", "text/plain");
    let bulk = fixture.dq.schedule_many([good, fixture.dq.schedule::<PAIRS>([((1, 2), 3)].into())]);
    let error = bulk.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Codec);
    let text = error.to_string();
    for part in ["HashMap", "key must be a string", "queue Q"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(fixture.stats().await.stored(), 0);
}

#[tokio::test]
async fn a_reserved_queue_name_can_neither_be_handled_nor_scheduled() {
    let fixture = Fixture::new().await;
    let runner = fixture.dq.runner().handler(TestHandler::done().of_queue("dq.mail"));
    let handled = runner.build().unwrap_err();
    assert!(handled.remedy_text().unwrap().contains("builder.rs:"), "{handled}");
    let queue = fixture.dq.queue("dq.mail").unwrap();
    let scheduled = queue.schedule("x", "text/plain").await.unwrap_err();
    for error in [handled, scheduled] {
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.message().contains("dq.mail"), "{error}");
    }
}
