//! The OpenAPI document, judged by programs of others: the client that openapi-python-client generates from
//! it works, and schemathesis finds no request that the document and the server see differently.

mod support;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use dq_core::{Dq, Due, DurationExt, QueueName};
use dq_ops::{Actor, Ops, Role, ScheduleRequest};
use dq_servers::PythonPackage;
use serde_json::json;
use support::{ADMIN, Fixture, auth};
use tokio::net::TcpListener;
use tokio::process::Command;

/// Maximum time of a program: Python starts slowly on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Directory with a package and all that it needs.
async fn package(package: PythonPackage) -> PathBuf {
    tokio::task::spawn_blocking(move || dq_servers::python_package(package)).await.unwrap()
}

/// Runs Python with modules from these directories; returns its output.
async fn python(modules: &[&Path], arguments: &[&str], directory: &Path) -> String {
    let mut python = Command::new("python3");
    python
        .args(arguments)
        .env("PYTHONPATH", std::env::join_paths(modules).unwrap())
        .env("NO_PROXY", "*")
        .current_dir(directory)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(TIMEOUT, python.output()).await;
    let output = output.unwrap_or_else(|_| panic!("python3 {arguments:?} does not end")).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "python3 {arguments:?}: {out}\n{err}");
    out + &err
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_others_generate_works() {
    let fixture = Fixture::start("/ops/dq").await;
    fixture.dead("MAIL", "dead", "host 7 refused").await;
    fixture.schedule("MAIL", "later", "1", Due::After(9.hours())).await;
    let directory = tempfile::tempdir().unwrap();
    let document = fixture.send(ADMIN, "GET", "/ops/dq/openapi.json", None).await.body;
    std::fs::write(directory.path().join("openapi.json"), document).unwrap();
    std::fs::write(directory.path().join("config.yml"), "post_hooks: []\n").unwrap();
    let package = package(PythonPackage::OpenapiClient).await;
    let generate = [
        "-m",
        "openapi_python_client",
        "generate",
        "--path=openapi.json",
        "--config=config.yml",
        "--meta=none",
        "--output-path=dq_client",
    ];
    let report = python(&[&package], &generate, directory.path()).await;
    // It says here what it leaves out.
    let report = report.to_lowercase();
    assert!(!report.contains("error") && !report.contains("warning"), "{report}");

    let program = directory.path().join("program.py");
    std::fs::write(&program, include_str!("client.py")).unwrap();
    let base = format!("http://{}/ops/dq", fixture.address);
    let run = ["program.py", &base, ADMIN];
    let output = python(&[&package, directory.path()], &run, directory.path()).await;
    assert_eq!(output.trim(), "done", "{output}");
    let stats = fixture.dq.queue("a/../b?c#d").unwrap().stats().await.unwrap();
    assert_eq!(stats.stored(), 0);
    let stats = fixture.dq.queue("MAIL").unwrap().stats().await.unwrap();
    assert_eq!((stats.stored(), stats.dead, stats.ready), (2, 0, 1));
}

/// A server as `dq serve` runs it, with what the examples of the document name; returns its address.
async fn served() -> String {
    let dq = Dq::connect("memory:").await.unwrap();
    let ops = Ops::new(dq);
    let session = ops.session(Actor::new("ada", Role::Admin));
    let definition = json!({"queue": "REPORT", "every": "1h", "payload": {"region": "eu"}});
    let definition = serde_json::from_value(definition).unwrap();
    session.put_schedule("nightly-report", &definition).await.unwrap();
    // That of the examples.
    let mut job = ScheduleRequest::new("{}");
    (job.key, job.due) = (Some("order-4711".to_owned()), Due::After(1.hours()));
    session.schedule(&QueueName::new("ORDER_TIMEOUT").unwrap(), job).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(dq_web::serve(listener, ops, auth(), std::future::pending()));
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_and_the_server_agree() {
    let package = package(PythonPackage::Schemathesis).await;
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program.py");
    std::fs::write(&program, include_str!("agree.py")).unwrap();
    let run = ["program.py", &served().await, ADMIN];
    let report = python(&[&package], &run, directory.path()).await;
    for phase in ["Examples", "Coverage", "Fuzzing"] {
        assert!(report.contains(&format!("✅ {phase}")), "{report}");
    }
}
