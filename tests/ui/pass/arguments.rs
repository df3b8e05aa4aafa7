//! Combinations of extractors and payload, patterns as arguments, and return types.

use std::time::SystemTime;

use dq::prelude::*;
use dq::{BoxError, FromJob, RawPayload};

#[derive(Clone)]
struct Db;

#[derive(serde::Deserialize)]
struct Order {
    id: u64,
}

struct Tenant;

impl FromJob for Tenant {
    async fn from_job(_: &JobContext) -> Result<Self, BoxError> {
        Ok(Tenant)
    }
}

#[delay_handler("NOTHING")]
async fn nothing() {}

#[delay_handler("PAYLOAD")]
async fn payload(_order: Order) {}

#[delay_handler("STATE")]
async fn state(_db: State<Db>) {}

#[delay_handler("RAW")]
async fn raw(RawPayload(_bytes): RawPayload) {}

#[delay_handler("ALL")]
async fn all(ctx: dq::JobContext, State(_db): dq::State<Db>, _: Tenant, Order { id }: Order) {
    let _ = (ctx, id);
}

#[delay_handler("SAME_TWICE")]
async fn same_twice(_: State<Db>, _: State<Db>, mut order: Order) {
    order.id += 1;
    assert!(order.id > 0);
}

#[delay_handler("MARKED")]
async fn marked(_ctx: JobContext, #[extract] _tenant: Tenant) {}

#[delay_handler("OTHER_ATTRIBUTES")]
async fn other_attributes(#[allow(unused)] order: Order) {}

#[delay_handler("TUPLE")]
async fn tuple((_id, _name): (u64, String)) {}

#[delay_handler("GENERIC_TYPE")]
async fn generic_type(_by_name: std::collections::HashMap<String, Vec<u64>>) {}

#[delay_handler("BRACKETS")]
#[allow(unused_parens)]
async fn brackets(_: (State<Db>)) {}

#[delay_handler("TEXT_ERROR")]
async fn text_is_an_error() -> Result<(), &'static str> {
    Err("no")
}

#[delay_handler("SOME_OUTCOME")]
async fn some_outcome() -> impl dq::IntoOutcome {
    Outcome::Done
}

#[delay_handler("BLOCKING", blocking)]
fn blocking(name: String) -> std::io::Result<()> {
    std::fs::remove_file(name)
}

fn without_payload<Q: dq::Queue<Payload = ()>>() {}

fn with_payload<Q: dq::Queue<Payload = Order>>() {}

async fn due_times(dq: &Dq) -> dq::Result<()> {
    dq.schedule::<nothing>(()).at(SystemTime::now()).key(u128::MAX).await?;
    dq.reschedule::<nothing>("17", SystemTime::now()).await?;
    Ok(())
}

fn main() {
    let _ = due_times;
    without_payload::<nothing>();
    without_payload::<state>();
    without_payload::<raw>();
    without_payload::<marked>();
    without_payload::<brackets>();
    with_payload::<payload>();
    with_payload::<all>();
}
