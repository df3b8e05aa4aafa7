use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT")]
async fn returns_unsupported_type() -> u32 {
    42
}

#[delay_handler("ORDER_TIMEOUT")]
async fn returns_result_of_unsupported_type() -> dq::Result<u32> {
    Ok(42)
}

struct Trouble;

#[delay_handler("ORDER_TIMEOUT")]
async fn returns_result_without_error_type() -> Result<(), Trouble> {
    Err(Trouble)
}

#[delay_handler("ORDER_TIMEOUT", blocking)]
fn blocking_returns_unsupported_type() -> u32 {
    42
}

fn main() {}
