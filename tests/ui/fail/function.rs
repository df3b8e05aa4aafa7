use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT")]
async fn borrowed_payload(_order: &str) {}

#[delay_handler("ORDER_TIMEOUT")]
async fn condition_on_argument(#[cfg(unix)] _ctx: dq::JobContext) {}

#[delay_handler("ORDER_TIMEOUT")]
async fn extract_with_arguments(#[extract(first)] _ctx: dq::JobContext) {}

#[delay_handler("ORDER_TIMEOUT")]
async fn generic<T: serde::de::DeserializeOwned>(_payload: T) {}

#[delay_handler("B")]
async fn with_impl(_payload: impl serde::de::DeserializeOwned) {}

#[delay_handler("ORDER_TIMEOUT")]
struct OrderTimeout;

#[delay_handler("ORDER_TIMEOUT")]
fn not_async() {}

struct Mailer;

impl Mailer {
    #[delay_handler("SEND_MAIL")]
    async fn send(&self, _to: String) {}
}

#[delay_handler("ORDER_TIMEOUT")]
async fn where_clause()
where
    u32: Copy,
{
}

#[delay_handler("A")]
async unsafe fn qualifiers() {}

#[delay_handler("B")]
async extern "C" fn foreign() {}

#[delay_handler("C", blocking)]
const fn constant() {}

#[delay_handler("D", blocking)]
unsafe extern "C" fn variadic(_arguments: ...) {}

fn main() {}
