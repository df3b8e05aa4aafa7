//! Everything that is found before the first job.

use dq_core::config::{Config, QueueSettings};
use dq_core::{Dq, ErrorKind, HandlerResult, JobContext, QueueCode};

use crate::rig::{Handle, QUEUE, Rig};

struct Other;

impl dq_core::DelayHandler for Other {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        QUEUE
    }

    async fn handle(&self, _job: JobContext, _payload: String) -> HandlerResult {
        Err("never run".into())
    }
}

/// A handler of another queue.
pub(crate) struct Elsewhere;

impl dq_core::DelayHandler for Elsewhere {
    type Payload = String;

    fn code(&self) -> impl QueueCode {
        "OTHER"
    }

    async fn handle(&self, _job: JobContext, _payload: String) -> HandlerResult {
        Err("never run".into())
    }
}

#[tokio::test]
async fn two_handlers_of_one_code_are_both_named() {
    let rig = Rig::new().await;
    let runner = rig.dq.runner().handler(Handle::done()).handler(Other);
    let error = runner.build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Duplicate);
    assert_eq!(error.message().matches("builder.rs:").count(), 2, "{error}");
}

#[tokio::test]
async fn two_objects_of_one_type_and_line_are_two_handlers() {
    let rig = Rig::new().await;
    let mut runner = rig.dq.runner().without_linked_handlers();
    for _ in 0..2 {
        runner = runner.handler(Handle::done());
    }
    assert_eq!(runner.build().unwrap_err().kind(), ErrorKind::Duplicate);
}

#[tokio::test]
async fn a_runner_without_handlers_says_what_is_missing() {
    let rig = Rig::new().await;
    let error = rig.dq.runner().without_linked_handlers().build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unhandled);
    assert!(error.to_string().contains("use my_handlers as _;"), "{error}");
}

#[tokio::test]
async fn a_configured_queue_without_a_handler_is_told_unless_it_is_elsewhere() {
    let config = "[backend]\ntype = \"memory\"\n[queues.ELSEWHERE]\nconcurrency = 2";
    let connect = || Dq::builder().config(Config::from_toml(config).unwrap()).connect();
    let error = connect().await.unwrap().runner().handler(Handle::done()).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unhandled);
    let text = error.to_string();
    assert!(text.contains("ELSEWHERE") && text.contains("use my_handlers as _;"), "{text}");
    assert!(text.contains(".only("), "{text}");
    let runner = connect().await.unwrap().runner().handler(Handle::done()).only([QUEUE]);
    assert!(runner.build().is_ok());
}

#[tokio::test]
async fn bad_settings_are_told_with_the_queue() {
    let rig = Rig::new().await;
    let zero = QueueSettings::new().concurrency(0);
    let error = rig.dq.runner().handler(Handle::done()).queue(QUEUE, zero).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.message().contains("queue Q: concurrency is 0"), "{error}");
    let error = rig.dq.runner().handler(Handle::done()).concurrency(0).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
}

#[tokio::test]
async fn two_runners_of_one_name_are_refused_while_the_first_lives() {
    let rig = Rig::new().await;
    let build = || rig.dq.runner().handler(Handle::done()).name("twin").build();
    let first = build().unwrap();
    assert_eq!(build().unwrap_err().kind(), ErrorKind::Duplicate);
    drop(first);
    assert!(build().is_ok());
}

#[tokio::test]
async fn nothing_is_stored_of_a_job_that_is_refused() {
    let rig = Rig::new().await;
    let queue = rig.dq.queue(QUEUE).unwrap();
    let job = || queue.schedule("x", "text/plain");
    for (job, needle) in [
        (job().key(""), "key is empty"),
        (job().key("k".repeat(300)), "300 bytes"),
        (job().key("a\u{7}"), "control character"),
        (job().after(std::time::Duration::MAX), "days ahead"),
        (job().at(dq_core::Timestamp::from_millis(-5)), "1970"),
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
        assert_eq!(rig.dq.queue(name).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(rig.stats().await.stored(), 0);
}

/// What cannot be written as JSON.
struct Opaque;

impl serde::Serialize for Opaque {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("it cannot be said"))
    }
}

dq_core::queue!(OPAQUE: Opaque = "Q");

#[tokio::test]
async fn a_payload_that_does_not_encode_is_told_and_takes_its_whole_bulk_with_it() {
    let rig = Rig::new().await;
    let error = rig.dq.schedule::<OPAQUE>(Opaque).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Codec);
    let text = error.to_string();
    assert!(text.contains("Opaque") && text.contains("it cannot be said"), "{text}");
    assert!(text.contains("queue Q"), "{text}");
    let good = rig.dq.queue(QUEUE).unwrap().schedule("x", "text/plain");
    let bulk = [good, rig.dq.schedule::<OPAQUE>(Opaque)];
    assert_eq!(rig.dq.schedule_many(bulk).await.unwrap_err().kind(), ErrorKind::Codec);
    assert_eq!(rig.stats().await.stored(), 0);
}
