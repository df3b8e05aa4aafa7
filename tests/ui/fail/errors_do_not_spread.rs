//! An error in a handler causes no further errors at `schedule` calls.

use dq::{Dq, delay_handler};

#[delay_handler("NOT_ASYNC")]
fn not_async(_number: u64) {}

#[delay_handler("UNKNOWN_KEY", attempts = 3)]
async fn unknown_key(_number: u64) {}

fn schedule(dq: &Dq) {
    let _ = dq.schedule::<not_async>(1);
    let _ = dq.schedule::<unknown_key>(1);
}

fn main() {}
