//! A program's configuration: files, environment variables, secrets.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use dq::backend::Backend;
use dq::backend::BackendConfig;
use dq::config::{Config, Environment, Secret};
use dq::prelude::*;
use dq::{ErrorKind, async_trait};
use serde::Deserialize;

const FILE: &str = r#"
[backend]
type = "sqlite"
path = "${DQ_DATA}/jobs.db"

[queues.ORDER_TIMEOUT]
concurrency = 16
"#;

/// Reads a configuration in a new process with these variables: the file, or the environment alone
/// if the file is empty. Returns the process's output.
fn read_in_process(file: &str, variables: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dq.toml");
    std::fs::write(&path, file).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process_entry", "--nocapture"])
        .env("TEST_CONFIG", if file.is_empty() { Path::new("") } else { &path })
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Asserts that the text contains each of these.
#[track_caller]
fn assert_contains(text: &str, needles: &[&str]) {
    for needle in needles {
        assert!(text.contains(needle), "{needle} is missing in {text}");
    }
}

#[test]
fn child_process_entry() {
    let config = match std::env::var("TEST_CONFIG") {
        Err(_) => return,
        Ok(path) if path.is_empty() => Config::from_env(),
        Ok(path) => Config::from_path(path),
    };
    let config = match config {
        Ok(config) => config,
        Err(error) => return println!("refused: {error}"),
    };
    println!("{config:#?}");
    // A `Remote` backend's `connect` fails with its settings.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    if let Err(error) = runtime.block_on(Dq::builder().config(config).connect()) {
        println!("{error}");
    }
}

#[test]
fn variables_override_the_file_and_set_other_keys() {
    let output = read_in_process(
        FILE,
        &[
            ("DQ_DATA", "/var/lib/shop"),
            ("DQ_QUEUES__ORDER_TIMEOUT__CONCURRENCY", "4"),
            ("DQ_QUEUES__ORDER_TIMEOUT__TIMEOUT", "2m"),
            ("DQ_QUEUES__Mixed_Case__LEASE", "1m"),
            ("DQ_RUNNER__GRACE", "5s"),
        ],
    );
    let expected = ["/var/lib/shop/jobs.db", "4,", "120s", "\"Mixed_Case\"", "grace: 5s"];
    assert_contains(&output, &expected);
    assert!(!output.contains("16,"), "{output}");
}

#[test]
fn the_history_of_a_queue_is_a_table_or_zero_in_files_and_variables() {
    let file = "[backend]\ntype = \"memory\"\n[defaults]\nhistory = { max = 7, age = \"2h\" }";
    for (variable, value, max, age) in [
        ("UNUSED", "", "7", "7200s"),
        ("DQ_QUEUES__X__HISTORY__MAX", "5", "5", "86400s"),
        ("DQ_DEFAULTS__HISTORY__AGE", "1m", "7", "60s"),
        ("DQ_QUEUES__X__HISTORY", "0", "0", "0ns"),
    ] {
        let output = read_in_process(file, &[(variable, value)]);
        assert_contains(&output, &[&format!("max: {max},"), &format!("age: {age}")]);
    }
    for (variable, value) in
        [("DQ_QUEUES__X__HISTORY", "5"), ("DQ_QUEUES__X__HISTORY__MAXIMUM", "5")]
    {
        let output = read_in_process(file, &[(variable, value)]);
        assert_contains(&output, &["refused", variable, "max = 1000"]);
    }
}

#[tokio::test]
async fn a_store_is_found_as_its_own_type_behind_its_layers() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", dir.path().join("jobs.db").display());
    let dq = Dq::connect(&url).await.unwrap();
    assert!(dq.backend_as::<dq::sqlite::SqliteBackend>().is_some());
    assert!(dq.backend_as::<dq::MemoryBackend>().is_none());
    dq.close().await.unwrap();
}

#[test]
fn a_misspelt_variable_is_refused_like_a_key_of_the_file() {
    let data = ("DQ_DATA", "/tmp");
    let output = read_in_process(FILE, &[data, ("DQ_QUEUES__ORDER_TIMEOUT__CONCURENCY", "4")]);
    assert_contains(&output, &["refused", "`concurrency`"]);
    assert_contains(&read_in_process(FILE, &[]), &["refused", "\"DQ_DATA\""]);
}

#[test]
fn variables_alone_configure_a_program() {
    let output = read_in_process(
        "",
        &[
            ("DQ_BACKEND__TYPE", "sqlite"),
            ("DQ_BACKEND__PATH", "/var/lib/shop/jobs.db"),
            ("DQ_QUEUES__ORDER_TIMEOUT__CONCURRENCY", "4"),
        ],
    );
    assert_contains(&output, &["/var/lib/shop/jobs.db", "\"ORDER_TIMEOUT\"", "4,"]);
    for (variables, needle) in [
        (&[][..], "the environment: there is no [backend] (add the table with a `type`, or set"),
        (
            &[("DQ_BACKEND__TYPE", "sqlite")],
            "add `path = …` beside `type`, or set the variable DQ_BACKEND__PATH",
        ),
        (&[("DQ_BACKEND_TYPE", "sqlite")], "DQ_BACKEND__TYPE"),
        (&[("DQ_BACKEND__URL", "sqlite://x.db")], "backend: `type` is missing; known: `memory`"),
        (&[("DQ_RUNER__GRACE", "1s")], "variable DQ_RUNER__GRACE: runer: unknown key"),
    ] {
        assert_contains(&read_in_process("", variables), &["refused: ", needle]);
    }
}

#[test]
fn a_file_that_is_missing_or_cannot_be_opened_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    for (path, reason) in
        [("/nowhere/dq.toml".into(), ""), (file.join("dq.toml"), " cannot be read: ")]
    {
        let error = Config::from_path(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(&format!("{}{reason}", path.display())), "{error}");
    }
}

#[tokio::test]
async fn invalid_urls_are_refused_with_valid_alternatives() {
    for (url, needles) in [
        ("mongodb://localhost", ["\"mongodb\"", "known: memory, "]),
        ("jobs.db", ["no scheme", "sqlite://jobs.db"]),
        ("sqlite://x.db?durabilty=full", ["durabilty", "durability"]),
    ] {
        let error = Dq::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert_contains(&error.to_string(), &needles);
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remote {
    url: Secret,
    password: Option<Secret>,
    /// A password in a field that is not a `Secret`.
    token: Option<String>,
    #[serde(default)]
    port: u16,
    #[serde(default)]
    speed: Speed,
    #[serde(default, with = "dq::config::duration::option")]
    max_wait: Option<Duration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Speed {
    #[default]
    Fast,
    Slow,
}

#[typetag::deserialize(name = "remote")]
#[async_trait]
impl BackendConfig for Remote {
    async fn connect(&self, _: &Environment) -> dq::Result<Arc<dyn Backend>> {
        let Self { url, password, token, port, speed, max_wait } = self;
        let password = password.as_ref().map(Secret::expose);
        let settings = (url.expose(), password.or(token.as_deref()), port, speed, max_wait);
        Err(dq::Error::new(ErrorKind::Unavailable, format!("{settings:?}")))
    }
}

dq::backend::register_backend! {
    name: "remote",
    settings: Remote,
    schemes: [],
    from_url: |_| Err(dq::Error::invalid("it has no URL")),
}

/// Returns the error for `[backend] type = "remote"` with these lines, with `dq.toml` for the path.
fn refusal(lines: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dq.toml");
    std::fs::write(&path, format!("[backend]\ntype = \"remote\"\n{lines}")).unwrap();
    let error = Config::from_path(&path).unwrap_err();
    assert_eq!(
        (error.kind(), error.failed_operation()),
        (ErrorKind::Config, "read the configuration")
    );
    let text = format!("{error:?}");
    let path = path.display().to_string();
    assert!(text.contains(&path), "the file is named in {text}");
    text.replace(&path, "dq.toml")
}

/// The secrets are `hunter2` and `4711000`; no error may show them.
#[test]
fn errors_show_no_setting_of_a_backend_except_numbers_out_of_range() {
    for (lines, needle) in [
        ("url = [\"hunter2\"]", "dq.toml: backend.url: found a list, expected text"),
        ("url = \"x\"\nport = \"hunter2\"", "dq.toml: backend.port: "),
        (
            "url = \"x\"\nport = 70000",
            "backend.port: found 70000, expected a whole number, 0 to 65535",
        ),
        ("url = \"x\"\ntoken = 4711000", "backend.token: found a number, expected a string"),
        ("url = \"x\"\nspeed = \"hunter2\"", "backend.speed: expected `fast` or `slow`"),
        ("url = \"x\"\nmax_wait = \"hunter2\"", "backend.max_wait: *** is not a duration"),
        (
            "url = \"x\"\npasword = \"hunter2\"",
            "backend.pasword: unknown key; known: `url`, `password`, ",
        ),
        ("password = \"hunter2\"", "dq.toml: backend: `url` is missing"),
        ("url = \"hunter2\" 4711000", "line 3, column 17: expected newline"),
        (
            "url = \"hunter2${NOT_SET_AT_ALL}\"",
            "dq.toml: backend.url: the environment variable \"NOT_SET_AT_ALL\" is not set",
        ),
        (
            "url = \"x\"\n[[drain]]\ntype = \"remoot\"\nurl = \"hunter2\"",
            "drain.0.type: no backend is called \"remoot\"; known: `memory`, ",
        ),
    ] {
        let error = refusal(lines);
        assert_contains(&error, &[needle]);
        assert!(!error.contains("hunter2") && !error.contains("4711000"), "{error}");
        assert!(!error.contains(".rs:"), "{error}");
    }
}

#[test]
fn a_missing_or_unknown_backend_is_refused_with_the_valid_ones() {
    let url = Config::from_toml("backend = \"redis://user:hunter2@host\"").unwrap_err().to_string();
    assert_contains(&url, &["backend: found text", "Dq::connect"]);
    assert!(!url.contains("hunter2"), "{url}");
    let known =
        "`sqlite` (take one of these; in a program of your own, is the backend's crate linked?";
    let unknown = refusal("url = \"x\"\n[[drain]]\ntype = \"remoot\"");
    assert_contains(&unknown, &["`memory`, ", "`remote`, ", known]);
    assert_contains(&Config::from_toml("").unwrap_err().to_string(), &["there is no [backend]"]);
}

/// Each backend's own tests cover its settings; these rows show that files reach its checks.
#[tokio::test]
async fn invalid_settings_of_servers_are_refused_before_connecting() {
    for (backend, settings, needles) in [
        ("redis", "url = \"redis://:hunter2?x=y@h\"", ["`prefix = …`", "%3F"]),
        ("redis", "url = \"redis://h\"\nshards = { Q = -1 }", ["the queue Q", "one and 256"]),
        ("redisson", "url = \"redisson://h?codec=json\"", ["`codec`", "beside `url`"]),
        ("redis-expiry", "url = \"redsi://h\"", ["scheme", "redis+sentinel://"]),
        ("rabbitmq", "url = \"amqp://h\"\nqueue = \"quorum\"", ["backend.queue", "`queues`"]),
        ("rabbitmq", "url = \"amqp://u:hunter2@h\"\nprefix = \"amq.x\"", ["`prefix`", "amq"]),
    ] {
        let file = format!("[backend]\ntype = \"{backend}\"\n{settings}");
        let error = match Config::from_toml(&file) {
            Ok(config) => Dq::builder().config(config).connect().await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let text = error.to_string();
        assert_contains(&text, &needles);
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn an_error_in_a_variable_names_the_variable() {
    let file = "[backend]\ntype = \"remote\"\nurl = \"x\"";
    let output = read_in_process(file, &[("DQ_BACKEND__PORT", "hunter2")]);
    assert_contains(&output, &["environment variable DQ_BACKEND__PORT: backend.port: "]);
    assert!(!output.contains("hunter2"), "{output}");
    let output = read_in_process(file, &[("DQ_QUEUES__A__LEASE", "soon")]);
    assert_contains(&output, &["environment variable DQ_QUEUES__A__LEASE: queues.A.lease: "]);
}

#[test]
fn passwords_are_passed_unchanged() {
    let file = r#"backend = { type = "remote", url = "${U}$${V}", password = 4711 }"#;
    let given = |password| [("U", "u"), ("DQ_BACKEND__PASSWORD", password)];
    let output = read_in_process(file, &[("U", "u")]);
    assert_contains(&output, &[r#"("u${V}", Some("4711")"#]);
    for password in ["4711", "007", "1.50", "true", "-1", "${U}", "$${U}", "a}b"] {
        let output = read_in_process(file, &given(password));
        assert_contains(&output, &[&format!("Some({password:?})")]);
    }
}

/// If a drained store's path is misspelt, an empty store must not appear while the old jobs wait
/// forever.
#[tokio::test]
async fn a_drained_sqlite_store_must_exist() {
    let dir = tempfile::tempdir().unwrap();
    let connect = async |file: &str| {
        let path = dir.path().join(file);
        let drained = format!("type = \"sqlite\"\npath = {:?}", path.display().to_string());
        let config = format!("[backend]\ntype = \"memory\"\n[[drain]]\n{drained}");
        Dq::builder().config(Config::from_toml(&config).unwrap()).connect().await
    };
    let refused = async |file: &str, remedy: &str| {
        let error = connect(file).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert_contains(error.message(), &[file]);
        assert_contains(error.remedy_text().unwrap(), &[remedy]);
    };
    let url = format!("sqlite://{}", dir.path().join("old.db").display());
    Dq::connect(&url).await.unwrap().close().await.unwrap();
    refused("odl.db", "check the path").await;
    assert!(!dir.path().join("odl.db").exists());
    // A file without the tables, such as an application's database, is not changed either.
    std::fs::write(dir.path().join("empty.db"), "").unwrap();
    refused("empty.db", "`table_prefix`").await;
    assert_eq!(std::fs::metadata(dir.path().join("empty.db")).unwrap().len(), 0);
    connect("old.db").await.unwrap().close().await.unwrap();
}
