//! Validation by a runner before its first job, and by the client before storing a job.

use dq_core::config::{Config, LatePolicy, QueueSettings};
use dq_core::{Dq, DurationExt, ErrorKind};

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
async fn a_configured_queue_without_a_handler_is_refused_unless_excluded_by_only() {
    let config = "[backend]\ntype = \"memory\"\n[queues.ELSEWHERE]\nconcurrency = 2";
    let connect = || Dq::builder().config(Config::from_toml(config).unwrap()).connect();
    let error = connect().await.unwrap().runner().handler(TestHandler::done()).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unhandled);
    let text = error.to_string();
    assert!(text.contains("ELSEWHERE") && text.contains("use my_handlers as _;"), "{text}");
    assert!(text.contains(".only("), "{text}");
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
        let to = |then: &str| {
            let then = then.parse().unwrap();
            QueueSettings::new().late(LatePolicy::new(1.minutes(), then))
        };
        let runner = fixture
            .dq
            .runner()
            .handler(TestHandler::done())
            .handler(TestHandler::done().of_queue("OTHER"));
        runner.queue(QUEUE, to("queue:OTHER")).queue("OTHER", to(then)).build()
    };
    let error = build("queue:Q").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.message().contains("in a ring: "), "{error}");
    assert!(error.message().contains("OTHER, Q") && error.remedy_text().is_some(), "{error}");
    for then in ["skip", "queue:ELSEWHERE"] {
        assert!(build(then).is_ok());
    }
}

#[tokio::test]
async fn a_second_runner_of_a_name_is_refused_while_the_first_exists() {
    let fixture = Fixture::new().await;
    let build = || fixture.dq.runner().handler(TestHandler::done()).name("twin").build();
    let first = build().unwrap();
    assert_eq!(build().unwrap_err().kind(), ErrorKind::Duplicate);
    drop(first);
    assert!(build().is_ok());
}

#[tokio::test]
async fn an_invalid_job_is_refused_with_the_reason_and_not_stored() {
    let fixture = Fixture::new().await;
    let queue = fixture.dq.queue(QUEUE).unwrap();
    let job = || queue.schedule("x", "text/plain");
    for (job, needle) in [
        (job().key(""), "key is empty"),
        (job().key("k".repeat(300)), "300 bytes"),
        (job().key("a\u{7}"), "control character"),
        (job().after(std::time::Duration::MAX), "days ahead"),
        (job().at(dq_core::Timestamp::from_millis(-5)), "1970"),
        // Seconds instead of milliseconds.
        (job().at(dq_core::Timestamp::from_millis(1_700_000_000)), "seconds"),
        (job().max_attempts(0), "max_attempts"),
        (job().on_conflict(dq_core::OnConflict::Replace), "no key"),
        (job().header("", "x"), "header name"),
        (queue.schedule(vec![0; 1024 * 1024 + 1], "text/plain"), "1048577 bytes"),
    ] {
        let error = job.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(needle), "{needle}: {error}");
        assert_eq!(error.failed_operation(), "schedule");
    }
    for name in ["", "q\n", &"q".repeat(300)] {
        assert_eq!(fixture.dq.queue(name).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(fixture.stats().await.stored(), 0);
}

struct Opaque;

impl serde::Serialize for Opaque {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("not encodable"))
    }
}

dq_core::queue!(OPAQUE: Opaque = "Q");

#[tokio::test]
async fn a_payload_that_does_not_encode_fails_its_whole_bulk() {
    let fixture = Fixture::new().await;
    let error = fixture.dq.schedule::<OPAQUE>(Opaque).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Codec);
    let text = error.to_string();
    assert!(text.contains("Opaque") && text.contains("not encodable"), "{text}");
    assert!(text.contains("queue Q"), "{text}");
    let good = fixture.dq.queue(QUEUE).unwrap().schedule("x", "text/plain");
    let bulk = [good, fixture.dq.schedule::<OPAQUE>(Opaque)];
    assert_eq!(fixture.dq.schedule_many(bulk).await.unwrap_err().kind(), ErrorKind::Codec);
    assert_eq!(fixture.stats().await.stored(), 0);
}

#[tokio::test]
async fn a_reserved_queue_name_can_neither_be_handled_nor_scheduled() {
    let fixture = Fixture::new().await;
    let error =
        fixture.dq.runner().handler(TestHandler::done().of_queue("dq.mail")).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.message().contains("dq.mail"), "{error}");
    assert!(error.remedy_text().unwrap().contains("builder.rs:"), "{error}");
    let queue = fixture.dq.queue("dq.mail").unwrap();
    let error = queue.schedule("x", "text/plain").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.message().contains("dq.mail"), "{error}");
}
