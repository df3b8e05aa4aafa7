//! Required handler state: without it, the runner is not built.

use std::sync::Arc;

use dq::ErrorKind;
use dq::prelude::*;

#[derive(Clone)]
struct Db;

#[delay_handler("NEEDS_STATE")]
async fn needs_state(_job: JobContext, State(_db): State<Db>) {}

#[tokio::test]
async fn missing_state_is_an_error_of_build() {
    let dq = Dq::connect("memory:").await.unwrap();
    let error = dq.runner().build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingState);
    let text = error.to_string();
    for needle in ["state::needs_state", "tests/state.rs:", "state::Db", ".state(value)"] {
        assert!(text.contains(needle), "{needle} is missing in {text}");
    }
    // A reference is another type.
    assert!(dq.runner().state(&Db).build().is_err());
    assert!(dq.runner().state(Db).build().is_ok());
}

struct Archiver;

impl DelayHandler for Archiver {
    type Payload = u64;

    fn code(&self) -> impl QueueCode {
        "ARCHIVE"
    }

    fn requires(&self, requirements: &mut dq::Requirements) {
        requirements.state::<Arc<Disk>>();
    }

    async fn handle(&self, ctx: JobContext, _number: u64) -> HandlerResult {
        ctx.state::<Arc<Disk>>().ok_or("there is no disk")?;
        Ok(Outcome::Done)
    }
}

/// Not `Clone`.
struct Disk;

#[tokio::test]
async fn missing_state_of_a_handler_object_is_an_error_of_build() {
    let dq = Dq::connect("memory:").await.unwrap();
    let runner = || dq.runner().without_linked_handlers().handler(Archiver);
    let error = runner().build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingState);
    assert!(error.to_string().contains("state::Disk"), "{error}");
    let runner = runner().state(Arc::new(Disk)).build().unwrap();
    let job = dq.queue("ARCHIVE").unwrap().schedule("7", "application/json");
    assert!(job.await.unwrap().is_stored());
    assert_eq!(runner.run_due().await.unwrap().jobs, 1);
    let stats = dq.queue("ARCHIVE").unwrap().stats().await.unwrap();
    assert_eq!(stats.totals.unwrap().done, 1);
}
