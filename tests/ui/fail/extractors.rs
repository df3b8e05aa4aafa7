use dq::{BoxError, FromJob, JobContext, State, delay_handler};

struct Other;

struct Tenant;

impl FromJob for Tenant {
    async fn from_job(_: &JobContext) -> Result<Self, BoxError> {
        Ok(Tenant)
    }
}

#[derive(serde::Deserialize)]
struct Order;

#[delay_handler("A")]
async fn extract_on_other_type(#[extract] _other: Other) {}

#[delay_handler("B")]
async fn extractor_last_without_extract(_tenant: Tenant) {}

#[delay_handler("C")]
async fn not_an_extractor(_other: Other, _order: Order) {}

#[delay_handler("D")]
async fn payload_not_deserialize(_other: Other) {}

#[delay_handler("E")]
async fn payload_not_last(_order: Order, _ctx: JobContext) {}

#[delay_handler("F")]
async fn state_not_clone(State(_other): State<Other>) {}

fn main() {}
