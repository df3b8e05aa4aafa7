//! Guide: configuration.

use dq::prelude::*;

async fn connect() -> dq::Result<Dq> {
    Dq::builder()
        .url("sqlite://jobs.db")
        .defaults(QueueSettings::new().max_attempts(8).lease(1.minutes()))
        .connect()
        .await
}

async fn mail_worker(dq: &Dq, shutdown: impl Future<Output = ()>) -> dq::Result<()> {
    dq.runner()
        .name("mail-worker")
        .only(["WELCOME_MAIL"])
        .queue("WELCOME_MAIL", QueueSettings::new().concurrency(4))
        .run_until(shutdown)
        .await
}
