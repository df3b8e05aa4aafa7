//! State that handlers ask for by type: found missing when the runner is built, not at the first
//! job.

use dq::ErrorKind;
use dq::prelude::*;

#[derive(Clone)]
struct Db;

#[delay_handler("NEEDS_STATE")]
async fn needs_state(_job: JobContext, State(_db): State<Db>) {}

#[tokio::test]
async fn missing_state_is_found_before_the_first_job() {
    let dq = Dq::connect("memory:").await.unwrap();
    let error = dq.runner().build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingState);
    let text = error.to_string();
    for needle in ["state::needs_state", "tests/state.rs:", "state::Db", ".state(value)"] {
        assert!(text.contains(needle), "{needle} is missing in {text}");
    }
    // A reference to it is another type.
    assert!(dq.runner().state(&Db).build().is_err());
    assert!(dq.runner().state(Db).build().is_ok());
}
