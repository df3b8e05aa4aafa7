//! The programs for database drivers: the job exists with the order's row, and ends with its
//! change.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use dq_servers::shared_postgres;
use serde_json::json;

use crate::server::Server;

/// Builds the program, which is in a workspace of its own, and returns its path without a suffix.
fn build(program: &str) -> PathBuf {
    let target = std::env::current_exe().expect("the test knows its own path");
    let target = target.ancestors().nth(3).expect("tests are in TARGET/PROFILE/deps");
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/transactions/Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--manifest-path", manifest, "--bin", program])
        .env("CARGO_TARGET_DIR", target)
        .output()
        .expect("cargo starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {error}");
    target.join("debug").join(program)
}

/// Returns the program's output.
fn run(program: &str, url: &str, dir: &Path) -> String {
    let output = crate::program::output(build(program), dir, &[url]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {error}");
    String::from_utf8(output.stdout).expect("the output is text")
}

#[test]
fn orders_and_jobs_share_postgres_transactions() {
    let postgres = shared_postgres();
    let dir = tempfile::tempdir().unwrap();
    for program in ["sqlx_postgres", "sea_orm", "diesel_async", "tokio_postgres"] {
        let url = postgres.create_database();
        assert_eq!(run(program, &url, dir.path()), "1 job\norder 1: cancelled\n", "{program}");
        let rows = postgres.psql(&url, "SELECT id, state FROM orders").unwrap();
        assert_eq!(rows.trim(), "1|cancelled", "{program}");
        let jobs = postgres.psql(&url, "SELECT count(*) FROM dq.job").unwrap();
        assert_eq!(jobs.trim(), "0", "{program}: the job ended with the order");
    }
}

#[test]
fn orders_and_jobs_share_sqlite_transactions() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run("sqlx_sqlite", "sqlite:shop.db", dir.path()), "1 job\norder 1: cancelled\n");
    assert_eq!(crate::server::stored_in(&dir.path().join("shop.db"), "ORDER_TIMEOUT"), 0);
}

/// The axum service, with a database of its own.
struct Shop {
    program: PathBuf,
    url: String,
    dir: tempfile::TempDir,
}

impl Shop {
    fn new() -> Self {
        let url = shared_postgres().create_database();
        Self { program: build("axum_postgres"), url, dir: tempfile::tempdir().unwrap() }
    }

    fn open(&self, timeout: &str) -> Server {
        Server::start(&self.program, self.dir.path(), &[&self.url, "--timeout", timeout])
    }

    fn psql(&self, sql: &str) -> String {
        shared_postgres().psql(&self.url, sql).unwrap().trim().to_owned()
    }

    /// The numbers of orders and of jobs.
    fn rows(&self) -> String {
        self.psql("SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM dq.job)")
    }
}

#[test]
fn an_unpaid_order_of_the_axum_service_cancels_itself() {
    let shop = Shop::new();
    let server = shop.open("1");
    let start = Instant::now();
    let id = server.order();
    server.wait_until_cancelled(id);
    assert!(start.elapsed() >= Duration::from_secs(1), "cancelled early");
    assert_eq!(server.program.line(), Some(format!("order {id}: cancelled")));
    let refusal = json!({ "error": format!("order {id} is cancelled already") });
    assert_eq!(server.pay(id), (409, refusal));
    assert_eq!(shop.rows(), "1|0");
}

#[test]
fn a_paid_order_of_the_axum_service_stays_paid_and_leaves_no_job() {
    let shop = Shop::new();
    let mut server = shop.open("600");
    let (paid, unpaid) = (server.order(), server.order());
    assert_eq!(shop.rows(), "2|2");
    assert_eq!(server.pay(paid), (200, json!({ "id": paid, "state": "paid" })));
    assert_eq!(shop.rows(), "2|1");
    assert_eq!(server.pay(paid).0, 409);
    assert_eq!(server.state(paid), "paid");
    assert_eq!(server.state(unpaid), "unpaid");

    let missing = json!({ "error": "there is no order 7" });
    assert_eq!(server.request("GET", "/orders/7"), (404, missing.clone()));
    assert_eq!(server.pay(7), (404, missing));

    server.program.signal("TERM");
    assert!(server.program.wait().success());
    assert_eq!(server.program.rest(), Vec::<String>::new());
    assert_eq!(shop.rows(), "2|1");
}

#[test]
fn an_order_of_the_axum_service_cancels_itself_after_a_kill() {
    let shop = Shop::new();
    let mut server = shop.open("1");
    let id = server.order();
    server.program.kill();
    let server = shop.open("600");
    server.wait_until_cancelled(id);
    assert_eq!(shop.rows(), "1|0");
}

/// Lets one of the two writes fail, or the commit of both.
#[test]
fn an_order_of_the_axum_service_and_its_job_change_together() {
    let shop = Shop::new();
    let server = shop.open("600");
    let id = server.order();
    let failure = (500, json!({ "error": "sorry, try again later" }));
    shop.psql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN RAISE 'refused by the test'; END $$",
    );
    let job = "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON dq.job";
    let commit = "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON orders
        DEFERRABLE INITIALLY DEFERRED";
    for (trigger, table) in [(job, "dq.job"), (commit, "orders")] {
        shop.psql(&format!("{trigger} FOR EACH ROW EXECUTE FUNCTION refuse()"));
        assert_eq!(server.request("POST", "/orders"), failure, "{trigger}");
        assert_eq!(server.pay(id), failure, "{trigger}");
        assert_eq!(shop.rows(), "1|1", "{trigger}");
        assert_eq!(server.state(id), "unpaid", "{trigger}");
        shop.psql(&format!("DROP TRIGGER refuse ON {table}"));
    }
    assert_eq!(server.pay(id).0, 200);
    assert_eq!(shop.rows(), "1|0");
}
