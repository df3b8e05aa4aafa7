use dq::delay_handler;

#[delay_handler("ORDER_TIMEOUT", blocking)]
async fn async_and_blocking() {}

#[delay_handler("ORDER_TIMEOUT", backoff = "1s")]
async fn backoff_without_parentheses() {}

#[delay_handler("ORDER_TIMEOUT", blocking = true, max_attempts = 3)]
fn blocking_with_value() {}

#[delay_handler]
async fn bare() {}

#[delay_handler()]
async fn empty() {}

#[delay_handler(max_attempts = 3)]
async fn settings_only() {}

#[delay_handler("ORDER\tTIMEOUT")]
async fn code_control_character() {}

#[delay_handler("")]
async fn code_empty() {}

#[delay_handler(42)]
async fn code_no_string() {}

#[delay_handler(max_attempts = 3, "ORDER_TIMEOUT")]
async fn code_not_first() {}

#[delay_handler(
    "ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_ORDER_TIMEOUT_"
)]
async fn code_too_long() {}

#[delay_handler("ORDER_TIMEOUT", lease = "1m", max_attempts = 3, lease = "2m")]
async fn duplicate_key() {}

#[delay_handler("ORDER_TIMEOUT", lease)]
async fn key_without_value() {}

#[delay_handler("ORDER_TIMEOUT" lease = "1m")]
async fn missing_comma() {}

#[delay_handler("ORDER_TIMEOUT", backoff(start = "1s"))]
async fn unknown_backoff_key() {}

#[delay_handler("ORDER_TIMEOUT", attempts = 3)]
async fn unknown_key() {}

#[delay_handler("", max_attempts = 0, timeout = "soon", backoff(factor = 0, jitter = 2))]
async fn errors_are_reported_together() {}

#[delay_handler("", lease = "1ms")]
async fn errors_in_attribute_and_function<T>(_order: &str) {}

fn main() {}
