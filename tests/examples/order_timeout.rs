//! `order_timeout`: unpaid orders cancel themselves and paid ones do not, even after a kill.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use dq::Dq;
use serde_json::{Value, json};

use crate::http::request;
use crate::program::{MAX_WAIT, Program, output};

const NAME: &str = "order_timeout";

struct Shop {
    program: Program,
    address: String,
}

impl Shop {
    fn open(dir: &Path, timeout: &str) -> Self {
        let arguments = ["--listen", "127.0.0.1:0", "--timeout", timeout];
        let program = Program::start(NAME, dir, &arguments);
        let line = program.line().expect("the shop prints its address");
        let address = line.strip_prefix("listening on http://").expect("an address").to_owned();
        Self { program, address }
    }

    fn request(&self, method: &str, path: &str) -> (u16, Value) {
        request(&self.address, method, path)
    }

    fn order(&self) -> i64 {
        let (status, order) = self.request("POST", "/orders");
        assert_eq!((status, &order["state"]), (201, &json!("unpaid")), "{order}");
        order["id"].as_i64().unwrap()
    }

    fn state(&self, id: i64) -> String {
        let (status, order) = self.request("GET", &format!("/orders/{id}"));
        assert_eq!((status, &order["id"]), (200, &json!(id)), "{order}");
        order["state"].as_str().unwrap().to_owned()
    }

    fn wait_until_cancelled(&self, id: i64) {
        let start = Instant::now();
        while self.state(id) != "cancelled" {
            assert!(start.elapsed() < MAX_WAIT, "order {id} stays {}", self.state(id));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn timeouts_in(dir: &Path) -> u64 {
    let dq = Dq::connect(&format!("sqlite://{}/shop.db", dir.display())).await.unwrap();
    let stats = dq.queue("ORDER_TIMEOUT").unwrap().stats().await.unwrap();
    dq.close().await.unwrap();
    // Includes dead jobs.
    stats.stored()
}

#[test]
fn an_unpaid_order_cancels_itself() {
    let dir = tempfile::tempdir().unwrap();
    let shop = Shop::open(dir.path(), "1");
    let start = Instant::now();
    let id = shop.order();
    shop.wait_until_cancelled(id);
    assert!(start.elapsed() >= Duration::from_secs(1), "cancelled early");
    let (status, refusal) = shop.request("POST", &format!("/orders/{id}/pay"));
    assert_eq!(status, 409);
    assert_eq!(refusal, json!({ "error": format!("order {id} is cancelled already") }));
}

#[test]
fn a_paid_order_stays_paid_and_leaves_no_job() {
    let dir = tempfile::tempdir().unwrap();
    let shop = Shop::open(dir.path(), "600");
    let (paid, unpaid) = (shop.order(), shop.order());
    assert_eq!(timeouts_in(dir.path()), 2);
    let pay = format!("/orders/{paid}/pay");
    assert_eq!(shop.request("POST", &pay), (200, json!({ "id": paid, "state": "paid" })));
    assert_eq!(timeouts_in(dir.path()), 1);
    assert_eq!(shop.request("POST", &pay).0, 409);
    assert_eq!(shop.state(paid), "paid");
    assert_eq!(shop.state(unpaid), "unpaid");
}

#[test]
fn payment_and_timeout_never_both_win() {
    let dir = tempfile::tempdir().unwrap();
    let shop = Shop::open(dir.path(), "0.2");
    let address = &shop.address;
    // Pays between 20 ms before and 20 ms after the timeout.
    let pay = |offset: u64| {
        let id = request(address, "POST", "/orders").1["id"].as_i64().unwrap();
        std::thread::sleep(Duration::from_millis(180 + offset));
        (id, request(address, "POST", &format!("/orders/{id}/pay")).0)
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let payers: Vec<_> = (0..40).map(|offset| scope.spawn(move || pay(offset))).collect();
        payers.into_iter().map(|payer| payer.join().unwrap()).collect()
    });
    for (id, status) in answers {
        match status {
            200 => assert_eq!(shop.state(id), "paid"),
            409 => assert_eq!(shop.state(id), "cancelled"),
            other => panic!("order {id}: {other}"),
        }
    }
}

#[test]
fn a_missing_order_is_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let shop = Shop::open(dir.path(), "600");
    let missing = json!({ "error": "there is no order 7" });
    assert_eq!(shop.request("GET", "/orders/7"), (404, missing.clone()));
    assert_eq!(shop.request("POST", "/orders/7/pay"), (404, missing));
    assert_eq!(shop.request("GET", "/carts").0, 404);
    assert_eq!(shop.request("GET", "/orders/seven").0, 400);
    assert_eq!(shop.request("DELETE", "/orders/7").0, 405);
}

#[test]
fn orders_and_timeouts_survive_kills() {
    let dir = tempfile::tempdir().unwrap();
    let mut shop = Shop::open(dir.path(), "600");
    let paid = shop.order();
    assert_eq!(shop.request("POST", &format!("/orders/{paid}/pay")).0, 200);
    shop.program.kill();
    let mut shop = Shop::open(dir.path(), "1");
    let unpaid = shop.order();
    shop.program.kill();
    let shop = Shop::open(dir.path(), "600");
    shop.wait_until_cancelled(unpaid);
    assert_eq!(shop.state(paid), "paid");
}

#[test]
fn after_a_kill_every_order_has_a_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let mut shop = Shop::open(dir.path(), "600");
    let address = shop.address.clone();
    // Creates orders until the shop is killed, probably in the middle of one.
    let (created, first_created) = channel();
    let customer = std::thread::spawn(move || {
        while create_order(&address).is_ok() {
            let _ = created.send(());
        }
    });
    first_created.recv_timeout(MAX_WAIT).expect("the first order is created");
    std::thread::sleep(Duration::from_millis(300));
    shop.program.kill();
    customer.join().unwrap();
    let shop = Shop::open(dir.path(), "600");
    let orders =
        (1..).take_while(|id| shop.request("GET", &format!("/orders/{id}")).0 == 200).count();
    assert!(orders > 0);
    assert_eq!(timeouts_in(dir.path()), u64::try_from(orders).unwrap());
}

fn create_order(address: &str) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "POST /orders HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n")?;
    stream.read_to_end(&mut Vec::new())?;
    Ok(())
}

#[cfg(unix)]
#[test]
fn signals_close_the_store_and_keep_pending_timeouts() {
    for signal in ["INT", "TERM"] {
        let dir = tempfile::tempdir().unwrap();
        let mut shop = Shop::open(dir.path(), "600");
        shop.order();
        shop.program.signal(signal);
        assert!(shop.program.wait().success(), "SIG{signal}");
        assert_eq!(timeouts_in(dir.path()), 1, "SIG{signal}");
        assert!(!dir.path().join("shop.db-wal").exists(), "SIG{signal} closes the store");
    }
}

#[test]
fn invalid_options_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, code, needle) in [
        (&["--timeout", "soon"][..], 2, "soon"),
        (&["--timeout=-1"], 2, "-1"),
        (&["--timeout", "1e15"], 2, "at most 100 years"),
        (&["--timeout"], 2, "--timeout"),
        (&["--port", "80"], 2, "--port"),
        (&["--listen", "nowhere"], 1, "nowhere"),
        (&["--db", "no/such/dir/x.db"], 1, "no/such/dir"),
    ] {
        let output = output(NAME, dir.path(), arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.to_lowercase().contains("error: "), "{arguments:?}: {errors}");
        assert!(errors.contains(needle), "{arguments:?}: {errors}");
    }
}
