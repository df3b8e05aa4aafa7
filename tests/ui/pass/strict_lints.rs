//! Handlers in a crate with strict lints.

#![forbid(unsafe_code)]
#![deny(warnings, missing_docs, missing_debug_implementations, unreachable_pub)]
#![deny(non_camel_case_types, dead_code, unused, private_interfaces, deprecated)]

use dq::prelude::*;

/// A payload.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Order;

/// A handler.
#[delay_handler("ORDER_TIMEOUT", timeout = "1s", backoff(factor = 3.0))]
pub async fn order_timeout(_ctx: JobContext, _order: Order) -> dq::Result<Outcome> {
    Ok(Outcome::Done)
}

/// An old handler.
#[deprecated]
#[delay_handler("ORDER_TIMEOUT_OLD")]
async fn order_timeout_old(_order: Order) {}

#[delay_handler("PRIVATE")]
async fn private() {}

#[derive(QueueCode)]
enum Code {
    SendMail,
}

#[delay_handler(Code::SendMail, blocking)]
fn send_mail(_order: Order) {}

fn main() {}
