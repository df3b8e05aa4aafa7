use std::cell::Cell;
use std::rc::Rc;

use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT")]
async fn handler() {
    let counter = Rc::new(Cell::new(1));
    pause().await;
    counter.set(2);
}

async fn pause() {}

fn main() {}
