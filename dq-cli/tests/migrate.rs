use dq_servers::shared_postgres;

use crate::support::{Server, code, ok};
use serde_json::Value;

#[test]
fn a_schema_is_created_and_its_sql_printed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let postgres = shared_postgres();
    let url = format!("{}?schema=jobs", postgres.create_database());
    let migrate = |rest: &[&str]| ok(path, &[&["migrate", "--url", &url], rest].concat());
    assert_eq!(migrate(&[]), "created the schema\n");
    assert_eq!(migrate(&[]), "the schema is up to date\n");
    let database = url.split('?').next().unwrap();
    postgres.psql(database, "UPDATE jobs.meta SET functions = 0").unwrap();
    let json = "{\"action\":\"migrate\",\"result\":\"updated\"}\n";
    assert_eq!(migrate(&["--json"]), json);

    // Printing connects to nothing.
    std::fs::write(
        path.join("dq.toml"),
        "[backend]\ntype = \"postgres\"\nurl = \"postgres://127.0.0.1:1/shop\"\nschema = \"jobs\"",
    )
    .unwrap();
    let sql = ok(path, &["migrate", "--print", "--grant", "clerk"]);
    let other = postgres.create_database();
    postgres.psql(&other, &format!("CREATE ROLE clerk LOGIN; {sql}")).unwrap();
    let clerk = format!("{}?schema=jobs", other.replace("dq@", "clerk@"));
    let stored = ok(path, &["enqueue", "ORDER", "17", "--url", &clerk]);
    assert!(stored.starts_with("scheduled ORDER/"), "{stored}");
    let by_clerk = ["migrate", "--url", &clerk];
    assert_eq!(ok(path, &by_clerk), "the schema is up to date\n");
    postgres.psql(&other, "UPDATE jobs.meta SET functions = 0").unwrap();
    let (status, error) = code(path, &by_clerk);
    assert_eq!(status, 2);
    assert!(error.contains("dq migrate` as the schema's owner"), "{error}");

    let granted = "created the schema; clerk may use it\n";
    let third = postgres.create_database();
    assert_eq!(ok(path, &["migrate", "--grant", "clerk", "--url", &third]), granted);
}

/// They are for all programs.
#[test]
fn only_a_configuration_changes_a_schemas_history_limits() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let postgres = shared_postgres();
    let url = postgres.create_database();
    let limits = || postgres.psql(&url, "SELECT history_max, history_age FROM dq.meta").unwrap();
    ok(path, &["migrate", "--url", &url]);
    let before = limits();
    assert_eq!(Server::start(path, &["--url", &url]).history, Value::Null);
    let configure = |defaults: &str| {
        let backend = format!("[backend]\ntype = \"postgres\"\nurl = \"{url}\"\n");
        std::fs::write(path.join("dq.toml"), backend + defaults).unwrap();
    };
    configure("");
    assert_eq!(Server::start(path, &[]).history, Value::Null);
    assert_eq!(limits(), before);
    configure("[defaults]\nhistory = { max = 5, age = \"1m\" }\n");
    assert_eq!(Server::start(path, &[]).history, 5);
    assert_eq!(limits(), "5|60000");
}

#[test]
fn other_stores_have_no_schema_to_migrate() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for line in [&["migrate"][..], &["migrate", "--print", "--url", "redis://127.0.0.1:1"]] {
        let (status, error) = code(path, line);
        assert_eq!(status, 1);
        assert!(error.contains("this store has no SQL schema"), "{error}");
        assert!(error.contains("remedy: nothing to do"), "{error}");
    }
    let (status, error) = code(path, &["migrate", "--api", "http://127.0.0.1:1"]);
    assert_eq!(status, 2);
    assert!(error.contains("works on the store itself"), "{error}");
    assert!(std::fs::read_dir(path).unwrap().next().is_none(), "no store is created");
}
