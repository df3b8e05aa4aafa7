//! Handler return types.

use std::fmt::Error as Trouble;

use dq::prelude::*;

#[delay_handler("A")]
async fn unit() {}

#[delay_handler("C")]
async fn outcome() -> Outcome {
    Outcome::Done
}

#[delay_handler("D")]
async fn result_of_unit() -> Result<(), Trouble> {
    Err(Trouble)
}

#[delay_handler("E")]
async fn result_of_outcome() -> dq::Result<Outcome> {
    Ok(Outcome::dead("never"))
}

#[delay_handler("F")]
async fn any_error() -> HandlerResult {
    Err(Trouble)?;
    Ok(Outcome::Done)
}

#[delay_handler("G")]
async fn text_is_an_error() -> Result<(), &'static str> {
    Err("no")
}

#[delay_handler("I")]
async fn some_outcome() -> impl dq::IntoOutcome {
    Outcome::Done
}

#[delay_handler("J", blocking)]
fn blocking(name: String) -> std::io::Result<()> {
    std::fs::remove_file(name)
}

#[delay_handler("L", blocking)]
fn blocking_unit(_ctx: JobContext, _db: State<String>, _payload: String) {}

fn main() {}
