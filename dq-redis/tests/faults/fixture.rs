//! Connections, claims and findings shared by the tests.

use std::sync::Arc;
use std::time::Duration;

use dq_core::config::{Environment, backend_from_url};
use dq_core::{Backend, Claimed, Finding, Result};
use dq_redis as _;

pub(crate) use dq_testkit::faults::TcpProxy;
pub(crate) use dq_testkit::fixture::{
    TIMEOUT, TestRunner, assert_error, assert_no_secret, by_id, claim_for, done_settlements,
    in_an_hour, job, keyed, queue, retry, stats, wait_until,
};

pub(crate) const PASSWORD: &str = "hunter2hunter2";

pub(crate) async fn connect(url: &str) -> Result<Arc<dyn Backend>> {
    // The history, which is off by default, has commands to test, too.
    let history = dq_core::HistoryLimits::all(dq_core::HistoryLimit::default());
    let environment = Environment::default().history(history);
    backend_from_url(url)?.connect(&environment).await
}

/// The server works, but may be slow.
pub(crate) async fn open(url: &str) -> Arc<dyn Backend> {
    let timeout = match url {
        _ if url.contains("response_timeout") => "",
        _ if url.contains('?') => "&response_timeout=60s",
        _ => "?response_timeout=60s",
    };
    let url = format!("{url}{timeout}");
    retry(|| connect(&url)).await
}

pub(crate) async fn open_through(proxy: &TcpProxy) -> Arc<dyn Backend> {
    open(&format!("redis://127.0.0.1:{}/0", proxy.port())).await
}

pub(crate) async fn claim(backend: &dyn Backend, names: &[&str], limit: usize) -> Result<Claimed> {
    claim_for(backend, names, limit, Duration::from_secs(600)).await
}

/// The finding must exist, have a remedy and show no password.
#[track_caller]
pub(crate) fn found<'a>(findings: &'a [Finding], code: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.code == code);
    let found = found.unwrap_or_else(|| panic!("{code} is not among {findings:?}"));
    assert!(!found.remedy.is_empty());
    assert_no_secret(&found.to_string());
    found
}
