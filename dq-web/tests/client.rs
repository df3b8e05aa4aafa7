//! The client that openapi-python-client, a program of others, generates from the OpenAPI document works.

mod support;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use dq_core::{Due, DurationExt};
use support::{ADMIN, Fixture};
use tokio::process::Command;

/// Maximum time of a program: Python starts slowly on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

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
    // The generator reports here what it leaves out.
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
    let install = || dq_servers::python_package(dq_servers::PythonPackage::OpenapiClient);
    let package = tokio::task::spawn_blocking(install);
    let package = package.await.unwrap();
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
    assert!(!report.to_lowercase().contains("error"), "{report}");

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
