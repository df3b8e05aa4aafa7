//! Fair turns for tenants: one tenant's import of 200 rows does not delay another's single row.
//!
//! ```sh
//! cargo run -p dq-examples --example multi_tenant_fairness
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dq::prelude::*;
use dq_examples::all_ended;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Row {
    tenant: String,
    number: u32,
}

/// At most 2 rows of each tenant run at once, in all processes together. Further rows wait, and the
/// queue's other jobs pass them.
#[delay_handler("IMPORT_ROW", group_max_running = 2)]
async fn import_row(State(imported): State<Arc<AtomicU32>>, row: Row) {
    tokio::time::sleep(5.millis()).await; // the work
    let before = imported.fetch_add(1, Ordering::Relaxed);
    if row.tenant == "globex" || row.number.is_multiple_of(50) {
        println!("{}: row {}, {before} rows before it", row.tenant, row.number);
    }
}

/// Schedules a tenant's rows; the tenant is the group.
async fn import(dq: &Dq, tenant: &str, rows: u32) -> dq::Result<()> {
    let row = |number| Row { tenant: tenant.to_owned(), number };
    let jobs = (1..=rows).map(|number| dq.schedule::<import_row>(row(number)).group(tenant));
    println!("{tenant}: {} scheduled", dq.schedule_many(jobs).await?.len());
    Ok(())
}

#[tokio::main]
async fn main() -> dq::Result<()> {
    let dq = Dq::connect("memory:").await?;
    import(&dq, "acme", 200).await?;
    import(&dq, "globex", 1).await?; // later, and it does not wait for acme's
    let ended = all_ended(dq.queue_of::<import_row>()?);
    // 8 slots: choose the limit well below, or a few busy tenants fill them all.
    dq.runner().concurrency(8).state(Arc::new(AtomicU32::new(0))).run_until(ended).await
}
