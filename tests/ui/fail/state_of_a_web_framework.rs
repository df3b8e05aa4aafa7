//! The likeliest mistake: importing the web framework's `State`.

use dq::delay_handler;

mod axum {
    pub mod extract {
        #[derive(Clone)]
        pub struct State<T>(pub T);
    }
}

use axum::extract::State;

#[derive(Clone)]
struct Db;

#[derive(serde::Deserialize)]
struct Order;

#[delay_handler("ORDER_TIMEOUT")]
async fn order_timeout(State(_db): State<Db>, _order: Order) {}

#[delay_handler("NIGHTLY")]
async fn nightly(State(_db): State<Db>) {}

fn main() {}
