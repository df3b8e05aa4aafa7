//! Guide: Redis.

use dq::prelude::*;
use dq::redis::ZsetSource;

async fn import(dq: &Dq) -> dq::Result<()> {
    let source = ZsetSource::new("redis://localhost:6379/0", "delayqueue", "ORDER_TIMEOUT")?;
    let report = dq.import(source.scores_in_seconds()).await?;
    println!("{report:?}");
    Ok(())
}
