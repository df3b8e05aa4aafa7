//! Connecting: TLS, sockets and standbys. A refusal names the server, the reason and a remedy, and
//! never the password.

use std::fs;
use std::sync::Arc;

use dq_core::config::{Environment, backend_from_url};
use dq_core::{Backend, Error, ErrorKind, Result};
use dq_postgres as _;
use dq_servers::Postgres;
use dq_testkit::faults::TcpProxy;
use dq_testkit::fixture::{assert_error, in_an_hour, job, retry, stats, wait_until};

/// Connects with a timeout longer than any call takes on a busy machine, unless the URL has one.
pub(crate) async fn connect(url: &str) -> Result<Arc<dyn Backend>> {
    connect_in(url, &Environment::default()).await
}

pub(crate) async fn connect_in(url: &str, environment: &Environment) -> Result<Arc<dyn Backend>> {
    let separator = if url.contains('?') { '&' } else { '?' };
    let timeout = match url.contains("response_timeout") {
        true => String::new(),
        false => format!("{separator}response_timeout=60s"),
    };
    let url = format!("{url}{timeout}");
    backend_from_url(&url)?.connect(environment).await
}

pub(crate) async fn open(url: &str) -> Arc<dyn Backend> {
    connect(url).await.unwrap()
}

async fn refused(url: &str, kind: ErrorKind, words: &[&str]) -> Error {
    let error = assert_error(connect(url).await, kind, words);
    assert_eq!(error.failed_operation(), "connect");
    error
}

/// Schedules a job, and returns how many the store has.
async fn count_after_another(backend: &dyn Backend) -> u64 {
    retry(|| backend.schedule(vec![in_an_hour(job("q"))])).await;
    stats(backend, "q").await.scheduled
}

#[tokio::test]
async fn a_server_with_tls_is_verified_with_its_own_authority() {
    let postgres = Postgres::options().tls().start();
    let (url, address) = (postgres.url(), postgres.address());
    let ca = postgres.ca().display().to_string();
    let backend = open(&format!("{url}?ca={ca}")).await;
    assert_eq!(count_after_another(&*backend).await, 1);
    let encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE application_name = 'dq'";
    assert_eq!(postgres.execute(encrypted), "t");

    refused(&url, ErrorKind::Config, &[&address, "`ca`"]).await;
    refused(&format!("{url}?sslmode=require"), ErrorKind::Config, &[&address, "`ca`"]).await;
    // The server has no entry for connections without TLS.
    let plain = format!("{url}?sslmode=disable");
    refused(&plain, ErrorKind::Config, &[&address, "no encryption", "pg_hba.conf"]).await;
    let missing = format!("{url}?ca=/nowhere/ca.crt");
    refused(&missing, ErrorKind::Config, &["`ca`", "/nowhere/ca.crt", "PEM"]).await;
    // Another server's authority.
    let other = Postgres::options().tls().start();
    let wrong = format!("{url}?ca={}", other.ca().display());
    refused(&wrong, ErrorKind::Config, &[&address, "certificate", "`ca`"]).await;
    let without = Postgres::start();
    let url = format!("{}?sslmode=require", without.url());
    refused(&url, ErrorKind::Config, &[&without.address(), "TLS", "sslmode=disable"]).await;
}

#[tokio::test]
async fn a_client_certificate_is_sent() {
    let postgres = Postgres::options().require_client_certificate().start();
    let url = format!("{}?ca={}", postgres.url(), postgres.ca().display());
    refused(&url, ErrorKind::Config, &[&postgres.address(), "client certificate"]).await;
    let (certificate, key) = (postgres.client_certificate(), postgres.client_key());
    let url = format!("{url}&certificate={}&key={}", certificate.display(), key.display());
    assert_eq!(count_after_another(&*open(&url).await).await, 1);
}

#[tokio::test]
async fn a_unix_socket() {
    let postgres = Postgres::start();
    let (dir, port) = (postgres.socket_dir().display(), postgres.port());
    let url = format!("postgres:///postgres?host={dir}&user=dq&port={port}");
    assert_eq!(count_after_another(&*open(&url).await).await, 1);
    let url = format!("postgres:///postgres?host=/nowhere&user=dq&port={port}");
    refused(&url, ErrorKind::Unavailable, &["/nowhere"]).await;
}

#[tokio::test]
async fn the_primary_of_several_hosts_is_used_also_after_a_failover() {
    let primary = Postgres::start();
    let standby = Postgres::options().standby_of(&primary).start();
    let (first, second) = (standby.address(), primary.address());
    let backend = open(&format!("postgres://dq@{first},{second}/postgres")).await;
    assert_eq!(count_after_another(&*backend).await, 1);
    refused(&standby.url(), ErrorKind::ReadOnly, &[&first, "primary"]).await;

    let count = "SELECT count(*) FROM dq.job";
    wait_until("the standby has the job", async || standby.try_execute(count) == Ok("1".into()))
        .await;
    let reader = open(&format!("{}?target_session_attrs=any", standby.url())).await;
    assert_eq!(stats(&*reader, "q").await.scheduled, 1);
    let refusal = reader.schedule(vec![job("q")]).await;
    assert_error(refusal, ErrorKind::ReadOnly, &[&first, "primary"]);

    primary.kill();
    standby.promote();
    assert_eq!(count_after_another(&*backend).await, 2);
    assert_eq!(count_after_another(&*reader).await, 3);
}

#[tokio::test]
async fn a_wrong_login() {
    let postgres = Postgres::start();
    postgres.execute(
        "CREATE ROLE app LOGIN SUPERUSER PASSWORD 'hunter2hunter2'; CREATE ROLE team PASSWORD 'hunter2'",
    );
    let access = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    fs::write(postgres.dir().join("data/pg_hba.conf"), access).unwrap();
    postgres.execute("SELECT pg_reload_conf()");
    let address = postgres.address();
    let url = |login: &str| format!("postgres://{login}@{address}/postgres");
    wait_until("passwords are required", async || connect(&url("dq")).await.is_err()).await;

    assert_eq!(count_after_another(&*open(&url("app:hunter2hunter2")).await).await, 1);
    for (login, words) in [
        ("app:hunter2wrong", &["password", "app"][..]),
        ("nobody:secret1", &["nobody"]),
        ("team:hunter2", &["team", "log in"]),
        ("app", &["password", "URL"]),
    ] {
        let error = refused(&url(login), ErrorKind::Config, words).await;
        assert!(error.message().contains(&address), "{error}");
    }
    let unknown = format!("postgres://app:hunter2hunter2@{address}/shop");
    refused(&unknown, ErrorKind::Config, &[&address, "shop", "create the database"]).await;
}

#[tokio::test]
async fn no_server_answers() {
    let postgres = Postgres::start();
    let address = postgres.address();
    postgres.stop();
    let url = format!("postgres://dq:hunter2@{address}/postgres");
    let error = refused(&url, ErrorKind::Unavailable, &[&address, "runs"]).await;
    assert!(error.is_retryable());
    let unknown = "postgres://dq:secret1@no-such-host.invalid/postgres";
    refused(unknown, ErrorKind::Unavailable, &["no-such-host.invalid:5432"]).await;

    postgres.restart();
    assert_eq!(count_after_another(&*open(&postgres.url()).await).await, 1);
    let proxy = TcpProxy::to(address).await;
    proxy.pause();
    let silent = format!("{}?response_timeout=200ms", proxy.url(&postgres.url()));
    refused(&silent, ErrorKind::Unavailable, &[&proxy.port().to_string()]).await;
}
