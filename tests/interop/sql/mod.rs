//! Programs in other languages call the SQL functions in transactions with their own rows, beside a
//! runner. `docs/guide/postgres.md` shows the programs.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use dq::Timestamp;
use dq::prelude::*;
use dq_servers::{PythonPackage, shared_postgres};
use serde::Deserialize;
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;

/// Longer than a program takes on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(180);

/// The programs' far due time, 2100-01-01T00:00:00Z.
const LATER_MS: i64 = 4_102_444_800_000;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Order {
    reference: String,
}

/// The payload and the key.
type Expired = (Order, Option<String>);

#[delay_handler("ORDER_TIMEOUT")]
async fn expire(
    ctx: JobContext,
    State(expired): State<mpsc::UnboundedSender<Expired>>,
    order: Order,
) -> HandlerResult {
    expired.send((order, ctx.key().map(ToString::to_string)))?;
    Ok(Outcome::Done)
}

#[tokio::test(flavor = "multi_thread")]
async fn python_with_psycopg() {
    let packages = spawn_blocking(|| dq_servers::python_package(PythonPackage::Psycopg));
    let mut python = Command::new("python3");
    python.arg(source("orders.py")).env("PYTHONPATH", packages.await.unwrap());
    let errors = [KEY_ERROR, "dq: due is a timestamp without time zone"];
    check(&database().await, |url| python.arg(url), &errors).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_with_pg() {
    let packages = spawn_blocking(dq_servers::node_packages);
    let mut node = Command::new("node");
    node.arg(source("orders.js")).env("NODE_PATH", packages.await.unwrap());
    check(&database().await, |url| node.arg(url), &[KEY_ERROR]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn java_with_a_spring_transaction() {
    let build = || dq_servers::java_program(&source("java"), "spring-orders", None);
    let mut java = Command::from(spawn_blocking(build).await.unwrap());
    let url = database().await;
    let (user, address) = url["postgres://".len()..].split_once('@').unwrap();
    let database = format!("-Dshop.database=jdbc:postgresql://{address}?user={user}");
    check(&url, |_| java.args([&database, "shop.Orders"]), &[KEY_ERROR]).await;
}

const KEY_ERROR: &str = "dq: key must have 1 to 255 bytes, without control characters";

/// What every program prints before its refused calls.
const OUTPUT: &str = "\
place: created
place: card declined
place: created
find: scheduled {\"reference\": \"paid\"}
pay: cancelled
find: none
place: created
move: moved
place: created
";

/// Runs a program in a time zone that is not the server's.
async fn check<'a>(url: &str, program: impl FnOnce(&str) -> &'a mut Command, errors: &[&str]) {
    let dq = Dq::connect(url).await.unwrap();
    let (sender, mut expired) = mpsc::unbounded_channel::<Expired>();
    let (stop, stopped) = oneshot::channel::<()>();
    let runner = dq.runner().only(["ORDER_TIMEOUT"]).state(sender).build().unwrap();
    let running = tokio::spawn(runner.run_until(stopped));
    execute(url, "CREATE TABLE orders (reference text PRIMARY KEY, paid bool DEFAULT false)").await;

    let program = program(url).env("TZ", "America/St_Johns").stdin(Stdio::null());
    let output = tokio::time::timeout(MAX_WAIT, program.kill_on_drop(true).output());
    let output = output.await.expect("the program ends").expect("the program starts");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let refused = out.strip_prefix(OUTPUT).unwrap_or_else(|| panic!("{out}"));
    let refused: Vec<&str> = refused.split("refused: ").skip(1).collect();
    assert_eq!(refused.len(), errors.len(), "{out}");
    for (refused, error) in refused.iter().zip(errors) {
        assert!(refused.contains(error), "{refused}");
    }

    let mut jobs = Vec::new();
    for _ in 0..2 {
        let next = tokio::time::timeout(MAX_WAIT, expired.recv()).await;
        jobs.push(next.expect("a job in time").expect("the runner runs"));
    }
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    jobs.extend(std::iter::from_fn(|| expired.try_recv().ok()));
    jobs.sort();
    let job =
        |reference: &str| (Order { reference: reference.to_owned() }, Some(reference.to_owned()));
    assert_eq!(jobs, [job("Zoë 🎁"), job("moved")]);

    let open = dq.get::<expire>("open").await.unwrap().expect("the last job");
    assert_eq!(open.job.due, Timestamp::from_millis(LATER_MS));
    assert_eq!(open.payload::<Order>().unwrap(), job("open").0);
    let stats = dq.queue_of::<expire>().unwrap().stats().await.unwrap();
    let totals = stats.totals.as_ref().unwrap();
    assert_eq!((totals.created, totals.done, totals.cancelled), (4, 2, 1), "{stats:?}");
    assert_eq!((stats.stored(), stats.adds_up()), (1, Some(true)), "{stats:?}");
    let rows = execute(url, "SELECT reference, paid FROM orders ORDER BY reference").await;
    assert_eq!(rows, "Zoë 🎁|f\nmoved|f\nopen|f\npaid|t");
}

fn source(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/sql").join(name)
}

async fn database() -> String {
    spawn_blocking(|| shared_postgres().create_database()).await.unwrap()
}

/// Executes SQL as `psql` does, with `|` between values.
async fn execute(url: &str, sql: &'static str) -> String {
    let url = url.to_owned();
    spawn_blocking(move || shared_postgres().psql(&url, sql)).await.unwrap().unwrap()
}
