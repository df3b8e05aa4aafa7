//! The macros of `dq`; use them through the facade.

mod delay_handler;
mod errors;
mod queue_code;
mod value;

use proc_macro::TokenStream;

/// Makes an async function the handler of a queue.
#[proc_macro_attribute]
pub fn delay_handler(attribute: TokenStream, item: TokenStream) -> TokenStream {
    delay_handler::expand(attribute.into(), item.into()).into()
}

/// Lets the variants of an enum name queues.
#[proc_macro_derive(QueueCode, attributes(queue_code))]
pub fn queue_code(input: TokenStream) -> TokenStream {
    queue_code::expand(input.into()).into()
}
