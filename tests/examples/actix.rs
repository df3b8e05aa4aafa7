//! `actix`: request handlers schedule and cancel; the runner beside the server runs the remaining
//! jobs.

use serde_json::json;

use crate::server::{Server, stored_in};

const NAME: &str = "actix";

#[test]
fn a_closed_account_is_deleted_unless_it_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let service = Server::start(NAME, dir.path(), &["--grace", "600"]);
    let (status, first) = service.request("DELETE", "/accounts/ann");
    assert_eq!(status, 202);
    assert!(first.as_str().unwrap().starts_with("ann is deleted at 20"), "{first}");
    let again = service.request("DELETE", "/accounts/ann");
    assert_eq!(again, (202, first), "a repeated request keeps the time");
    assert_eq!(service.request("DELETE", "/accounts/bob").0, 202);
    let (status, refusal) = service.request("DELETE", &format!("/accounts/{}", "x".repeat(2_000)));
    assert_eq!(status, 400);
    assert!(refusal.as_str().unwrap().contains("key"), "{refusal}");
    let (status, refusal) = service.request("GET", "/ops/dq/v1/queues");
    assert_eq!(status, 401, "the dashboard is there, and asks who it is: {refusal}");
    let keep = || service.request("POST", "/accounts/ann/keep");
    assert_eq!(keep(), (200, json!("ann is kept")));
    assert_eq!(keep(), (404, json!("ann is not being deleted")));
    assert_eq!(stored_in(&dir.path().join("accounts.db"), "DELETE_ACCOUNT"), 1, "that of bob");
    drop(service);

    let service = Server::start(NAME, dir.path(), &["--grace", "0"]);
    assert_eq!(service.request("DELETE", "/accounts/eve").0, 202);
    assert_eq!(service.program.line().as_deref(), Some("eve is deleted"));
}

#[test]
fn signals_stop_server_and_runner_and_leave_pending_jobs() {
    let (request, job) = (("DELETE", "/accounts/ann"), ("accounts.db", "DELETE_ACCOUNT"));
    crate::server::stops_at_signals(NAME, &["--grace", "600"], request, job);
}
