use dq::delay_handler;

#[delay_handler("A")]
async unsafe fn handler() {}

#[delay_handler("B")]
async extern "C" fn foreign() {}

#[delay_handler("C", blocking)]
const fn constant() {}

#[delay_handler("D", blocking)]
unsafe extern "C" fn variadic(_arguments: ...) {}

fn main() {}
