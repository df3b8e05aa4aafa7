use dq::{BoxError, FromJob, JobContext, delay_handler};

struct Tenant;

impl FromJob for Tenant {
    async fn from_job(_: &JobContext) -> Result<Self, BoxError> {
        Ok(Tenant)
    }
}

#[delay_handler("ORDER_TIMEOUT")]
async fn handler(_tenant: Tenant) {}

fn main() {}
