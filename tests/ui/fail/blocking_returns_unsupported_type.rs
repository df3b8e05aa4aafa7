use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT", blocking)]
fn handler() -> u32 {
    42
}

fn main() {}
