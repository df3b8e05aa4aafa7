//! A handler can be called as a function, and its name is also a type.

use dq::prelude::*;

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    id: u64,
}

#[delay_handler("ORDER_TIMEOUT")]
async fn order_timeout(State(paid): State<bool>, order: Order) -> HandlerResult {
    if paid {
        return Ok(Outcome::skip(format!("{} is paid", order.id)));
    }
    Ok(Outcome::Done)
}

#[delay_handler("DOUBLE", blocking)]
fn double(number: u64) -> Result<(), String> {
    Err((number * 2).to_string())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let outcome = order_timeout(State(true), Order { id: 7 }).await.unwrap();
    assert_eq!(outcome, Outcome::skip("7 is paid"));
    assert_eq!(double(2), Err("4".to_owned()));

    let function = order_timeout;
    assert_eq!(function(State(false), Order { id: 7 }).await.unwrap(), Outcome::Done);

    let dq = Dq::connect("memory:").await.unwrap();
    let _ = dq.schedule::<order_timeout>(Order { id: 7 }).await.unwrap();
    let _ = dq.schedule::<double>(2).await.unwrap();
}
