//! State that handlers ask for by type: a missing one is found when the runner is built, and in a test
//! kit when a job would need it.

use dq::ErrorKind;
use dq::prelude::*;
use dq_testkit::TestKit;

#[derive(Clone)]
struct Db;

#[delay_handler("NEEDS_STATE")]
async fn needs_state(_job: JobContext, State(_db): State<Db>) {}

#[delay_handler("NEEDS_NOTHING")]
async fn needs_nothing(_job: JobContext) {}

/// Asserts that an error names the handler, its place, the missing type and the remedy.
fn assert_names_what_is_missing(error: &dq::Error) {
    assert_eq!(error.kind(), ErrorKind::MissingState);
    let text = error.to_string();
    for needle in ["state::needs_state", "tests/state.rs:", "state::Db", ".state(value)"] {
        assert!(text.contains(needle), "{needle} is missing in {text}");
    }
}

#[tokio::test]
async fn missing_state_is_found_before_the_first_job() {
    let dq = Dq::connect("memory:").await.unwrap();
    assert_names_what_is_missing(&dq.runner().build().unwrap_err());
    // A reference to it is another type.
    assert!(dq.runner().state(&Db).build().is_err());
    assert!(dq.runner().state(Db).build().is_ok());
}

#[tokio::test]
async fn a_test_kit_needs_the_state_of_handlers_that_run_only() {
    let kit = TestKit::new().await.unwrap();
    let _ = kit.dq().schedule::<needs_nothing>(()).after(1.minutes()).await.unwrap();
    let _ = kit.dq().schedule::<needs_state>(()).after(1.hours()).key("k").await.unwrap();
    kit.assert_scheduled::<needs_state>("k", 1.hours()).await;
    let runs = kit.try_advance(59.minutes()).await.unwrap();
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].queue.as_str(), "NEEDS_NOTHING");

    // The second job becomes due on the way; the clock stops there.
    let due = kit.now() + 1.minutes();
    assert_names_what_is_missing(&kit.try_advance(2.hours()).await.unwrap_err());
    assert_eq!(kit.now(), due);
    assert_names_what_is_missing(&kit.try_advance(0.minutes()).await.unwrap_err());
}

#[tokio::test]
async fn a_test_kit_returns_the_runs_before_missing_state_with_the_next_call() {
    let kit = TestKit::new().await.unwrap();
    let _ = kit.dq().schedule::<needs_nothing>(()).after(1.minutes()).await.unwrap();
    let _ = kit.dq().schedule::<needs_state>(()).after(2.minutes()).key("k").await.unwrap();
    assert_names_what_is_missing(&kit.try_advance(1.hours()).await.unwrap_err());
    assert_eq!(kit.dq().cancel::<needs_state>("k").await.unwrap(), Cancelled::Cancelled);
    let runs = kit.try_advance(1.hours()).await.unwrap();
    assert_eq!(runs.len(), 1);
}

#[tokio::test]
#[should_panic(expected = "tests/state.rs:68")]
async fn advance_panics_with_the_missing_state_at_the_callers_line() {
    let kit = TestKit::new().await.unwrap();
    let _ = kit.dq().schedule::<needs_state>(()).await.unwrap();
    kit.advance(1.minutes()).await;
}

#[tokio::test]
async fn a_test_kit_with_the_state_runs_the_handler() {
    let kit = TestKit::with(|runner| runner.state(Db)).await.unwrap();
    let _ = kit.dq().schedule::<needs_state>(()).await.unwrap();
    assert_eq!(kit.advance(0.minutes()).await[0].outcome(), "done");
}

#[tokio::test]
async fn a_test_kit_needs_the_state_of_queues_that_are_named() {
    let error = TestKit::with(|runner| runner.only(["NEEDS_STATE"])).await.unwrap_err();
    assert_names_what_is_missing(&error);
    assert!(TestKit::with(|runner| runner.only(["NEEDS_NOTHING"])).await.is_ok());
}
