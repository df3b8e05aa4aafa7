//! Guide: configuration.

use dq::prelude::*;

async fn mail_worker(dq: &Dq, shutdown: impl Future<Output = ()>) -> dq::Result<()> {
    dq.runner()
        .name("mail-worker")
        .only(["WELCOME_MAIL"])
        .queue("WELCOME_MAIL", QueueSettings::new().concurrency(4))
        .run_until(shutdown)
        .await
}
