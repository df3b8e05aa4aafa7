//! Handler return types.

use dq::prelude::*;

#[derive(Debug)]
struct Trouble;

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("trouble")
    }
}

impl std::error::Error for Trouble {}

#[delay_handler("A")]
async fn unit() {}

#[delay_handler("B")]
async fn written_unit() -> () {}

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

#[delay_handler("H")]
async fn boxed() -> Result<Outcome, Box<dyn std::error::Error + Send + Sync>> {
    Ok(Outcome::Done)
}

#[delay_handler("I")]
async fn some_outcome() -> impl dq::IntoOutcome {
    Outcome::Done
}

#[delay_handler("J", blocking)]
fn blocking(name: String) -> std::io::Result<()> {
    std::fs::remove_file(name)
}

#[delay_handler("K", blocking)]
fn blocking_some_outcome() -> impl dq::IntoOutcome {
    Outcome::Done
}

#[delay_handler("L", blocking)]
fn blocking_unit(_ctx: JobContext, _db: State<String>, _payload: String) {}

fn main() {}
