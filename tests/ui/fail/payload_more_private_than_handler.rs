mod orders {
    #[derive(serde::Deserialize)]
    struct Order;

    #[dq::delay_handler("ORDER_TIMEOUT")]
    pub async fn handler(_order: Order) {}
}

fn main() {}
