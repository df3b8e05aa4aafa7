//! `order_timeout`: unpaid orders cancel themselves and paid ones do not, even after a kill.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::program::MAX_WAIT;
use crate::server::{Server, request, stored_in};

const NAME: &str = "order_timeout";

fn open(dir: &Path, timeout: &str) -> Server {
    Server::start(NAME, dir, &["--timeout", timeout])
}

fn timeouts_in(dir: &Path) -> u64 {
    stored_in(&dir.join("shop.db"), "ORDER_TIMEOUT")
}

/// Requests to the shop, also to `axum_postgres`.
impl Server {
    pub(crate) fn order(&self) -> i64 {
        let (status, order) = self.request("POST", "/orders");
        assert_eq!((status, &order["state"]), (201, &json!("unpaid")), "{order}");
        order["id"].as_i64().unwrap()
    }

    pub(crate) fn pay(&self, id: i64) -> (u16, serde_json::Value) {
        self.request("POST", &format!("/orders/{id}/pay"))
    }

    pub(crate) fn state(&self, id: i64) -> String {
        let (status, order) = self.request("GET", &format!("/orders/{id}"));
        assert_eq!((status, &order["id"]), (200, &json!(id)), "{order}");
        order["state"].as_str().unwrap().to_owned()
    }

    pub(crate) fn wait_until_cancelled(&self, id: i64) {
        let start = Instant::now();
        while self.state(id) != "cancelled" {
            assert!(start.elapsed() < MAX_WAIT, "order {id} stays {}", self.state(id));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn an_unpaid_order_cancels_itself() {
    let dir = tempfile::tempdir().unwrap();
    let shop = open(dir.path(), "1");
    let start = Instant::now();
    let id = shop.order();
    shop.wait_until_cancelled(id);
    assert!(start.elapsed() >= Duration::from_secs(1), "cancelled early");
    let refusal = json!({ "error": format!("order {id} is cancelled already") });
    assert_eq!(shop.pay(id), (409, refusal));
}

#[test]
fn a_paid_order_stays_paid_and_leaves_no_job() {
    let dir = tempfile::tempdir().unwrap();
    let shop = open(dir.path(), "600");
    let (paid, unpaid) = (shop.order(), shop.order());
    assert_eq!(timeouts_in(dir.path()), 2);
    assert_eq!(shop.pay(paid), (200, json!({ "id": paid, "state": "paid" })));
    assert_eq!(timeouts_in(dir.path()), 1);
    assert_eq!(shop.pay(paid).0, 409);
    assert_eq!(shop.state(paid), "paid");
    assert_eq!(shop.state(unpaid), "unpaid");

    let missing = json!({ "error": "there is no order 7" });
    assert_eq!(shop.request("GET", "/orders/7"), (404, missing.clone()));
    assert_eq!(shop.pay(7), (404, missing));
}

#[test]
fn payment_and_timeout_never_both_win() {
    let dir = tempfile::tempdir().unwrap();
    let shop = open(dir.path(), "0.2");
    // Pays between 20 ms before and 20 ms after the timeout.
    let post = |path: &str| request(&shop.address, "POST", path, "").unwrap();
    let pay = &|offset: u64| {
        let id = post("/orders").1["id"].as_i64().unwrap();
        std::thread::sleep(Duration::from_millis(180 + offset));
        (id, post(&format!("/orders/{id}/pay")).0)
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
fn orders_and_timeouts_survive_kills() {
    let dir = tempfile::tempdir().unwrap();
    let mut shop = open(dir.path(), "600");
    let paid = shop.order();
    assert_eq!(shop.pay(paid).0, 200);
    shop.program.kill();
    let mut shop = open(dir.path(), "1");
    let unpaid = shop.order();
    shop.program.kill();
    let shop = open(dir.path(), "600");
    shop.wait_until_cancelled(unpaid);
    assert_eq!(shop.state(paid), "paid");
}

#[test]
fn after_a_kill_every_order_has_a_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let mut shop = open(dir.path(), "600");
    let address = shop.address.clone();
    // Creates orders until the shop is killed, probably in the middle of one.
    let (created, first_created) = channel();
    let customer = std::thread::spawn(move || {
        while request(&address, "POST", "/orders", "").is_ok() {
            let _ = created.send(());
        }
    });
    first_created.recv_timeout(MAX_WAIT).expect("the first order is created");
    std::thread::sleep(Duration::from_millis(300));
    shop.program.kill();
    customer.join().unwrap();
    let shop = open(dir.path(), "600");
    let orders =
        (1..).take_while(|id| shop.request("GET", &format!("/orders/{id}")).0 == 200).count();
    assert!(orders > 0);
    assert_eq!(timeouts_in(dir.path()), u64::try_from(orders).unwrap());
}

#[test]
fn signals_close_the_store_and_keep_pending_timeouts() {
    let (request, job) = (("POST", "/orders"), ("shop.db", "ORDER_TIMEOUT"));
    crate::server::stops_at_signals(NAME, &[], request, job);
}
