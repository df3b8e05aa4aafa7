//! The `crate = "…"` option, for applications that rename `dq`. Here it names the core crate.

use dq::{QueueCode, delay_handler};

mod renamed {
    pub use dq_core as jobs;
}

#[delay_handler("CORE", crate = "::dq_core")]
async fn core(_ctx: dq_core::JobContext, _payload: u64) {}

#[delay_handler("RELATIVE", crate = "crate::renamed::jobs", blocking)]
fn relative(_ctx: dq_core::JobContext) -> dq_core::Result<()> {
    Ok(())
}

#[derive(QueueCode)]
#[queue_code(crate = "dq_core")]
enum Code {
    A,
}

fn main() {
    assert_eq!(dq_core::QueueCode::code(&Code::A), "A");
}
