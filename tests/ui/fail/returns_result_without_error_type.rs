use dq::delay_handler;

struct Trouble;

#[delay_handler("ORDER_TIMEOUT")]
async fn handler() -> Result<(), Trouble> {
    Err(Trouble)
}

fn main() {}
