use dq::delay_handler;

struct Orders;

#[delay_handler(Orders)]
async fn handler() {}

fn main() {}
