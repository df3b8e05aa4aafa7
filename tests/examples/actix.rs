//! `actix`: request handlers schedule and cancel; the runner beside the server runs the remaining
//! jobs.

use std::path::Path;

use dq::Dq;
use serde_json::{Value, json};

use crate::http::request;
use crate::program::{Program, output};

const NAME: &str = "actix";

struct Service {
    program: Program,
    address: String,
}

impl Service {
    fn start(dir: &Path, grace: &str) -> Self {
        let program = Program::start(NAME, dir, &["--listen", "127.0.0.1:0", "--grace", grace]);
        let line = program.line().expect("the service prints its address");
        let address = line.strip_prefix("listening on http://").expect("an address").to_owned();
        Self { program, address }
    }

    fn close(&self, name: &str) -> (u16, Value) {
        request(&self.address, "DELETE", &format!("/accounts/{name}"))
    }

    fn keep(&self, name: &str) -> (u16, Value) {
        request(&self.address, "POST", &format!("/accounts/{name}/keep"))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn deletions_in(dir: &Path) -> u64 {
    let dq = Dq::connect(&format!("sqlite://{}/accounts.db", dir.display())).await.unwrap();
    let stats = dq.queue("DELETE_ACCOUNT").unwrap().stats().await.unwrap();
    dq.close().await.unwrap();
    // Includes dead jobs.
    stats.stored()
}

#[test]
fn a_closed_account_is_deleted_unless_it_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), "600");
    let (status, first) = service.close("ann");
    assert_eq!(status, 202);
    assert!(first.as_str().unwrap().starts_with("ann is deleted at 20"), "{first}");
    assert_eq!(service.close("ann"), (202, first), "a repeated request keeps the time");
    assert_eq!(service.close("bob").0, 202);
    let (status, refusal) = request(&service.address, "GET", "/ops/dq/v1/queues");
    assert_eq!(status, 401, "the dashboard is there, and asks who it is: {refusal}");
    assert_eq!(service.keep("ann"), (200, json!("ann is kept")));
    assert_eq!(service.keep("ann"), (404, json!("ann is not being deleted")));
    assert_eq!(deletions_in(dir.path()), 1, "that of bob");
    drop(service);

    let service = Service::start(dir.path(), "0");
    assert_eq!(service.close("eve").0, 202);
    assert_eq!(service.program.line().as_deref(), Some("eve is deleted"));
}

#[cfg(unix)]
#[test]
fn signals_stop_server_and_runner_and_leave_pending_jobs() {
    for signal in ["INT", "TERM"] {
        let dir = tempfile::tempdir().unwrap();
        let mut service = Service::start(dir.path(), "600");
        assert_eq!(service.close("ann").0, 202);
        service.program.signal(signal);
        assert!(service.program.wait().success(), "SIG{signal}");
        assert_eq!(service.program.rest(), Vec::<String>::new(), "SIG{signal}");
        assert!(!dir.path().join("accounts.db-wal").exists(), "SIG{signal} closes the store");
        assert_eq!(deletions_in(dir.path()), 1, "SIG{signal}");
    }
}

#[test]
fn invalid_requests_and_options_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(dir.path(), "600");
    let (status, refusal) = service.close(&"x".repeat(2_000));
    assert_eq!(status, 400);
    assert!(refusal.as_str().unwrap().contains("key"), "{refusal}");
    for (arguments, code, needle) in [
        (&["--grace", "86401"][..], 2, "86400"),
        (&["--listen", &service.address], 1, "cannot listen on"),
        (&["--listen", "127.0.0.1:0", "--backend", "nonsense"], 1, "scheme"),
    ] {
        let output = output(NAME, dir.path(), arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(needle), "{arguments:?}: {errors}");
    }
}
