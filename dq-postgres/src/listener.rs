//! Listens to the server's notifications on a connection of its own, which poolers in transaction mode
//! do not allow: then runners find jobs by their claims only.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use dq_core::sync::lock;
use dq_core::{QueueName, Timestamp};
use tokio_postgres::AsyncMessage;
use tokio_postgres::types::Type;

use crate::store::{Store, in_schema};

/// A hint is repeated after this time: the server notifies once for callers that commit together.
const REPEATED_AFTER: Duration = Duration::from_millis(15);

const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// The server only notifies of jobs due within 1.5 s (`announce_due` in `common.sql`). So a process wakes
/// its runners if they have not claimed for this long, because their sweep interval is longer.
const MAX_QUIET: Duration = Duration::from_millis(1_200);

/// Runs until the task is aborted.
pub(crate) async fn run(store: Arc<Store>) {
    tokio::join!(receive(&store), wake_quiet(&store));
}

async fn wake_quiet(store: &Store) {
    loop {
        tokio::time::sleep(MAX_QUIET).await;
        let queues = store.listeners.queues();
        let last_claims = lock(&store.last_claims);
        for queue in queues {
            if last_claims.get(&queue).is_none_or(|claimed| claimed.elapsed() >= MAX_QUIET) {
                store.listeners.wake(&queue, Timestamp::EPOCH);
            }
        }
    }
}

async fn receive(store: &Arc<Store>) {
    loop {
        if let Err(error) = listen(store).await {
            tracing::debug!(%error, "no wake-up hints from PostgreSQL for now");
        }
        tokio::time::sleep(RECONNECT_DELAY).await;
    }
}

async fn listen(store: &Arc<Store>) -> Result<(), tokio_postgres::Error> {
    let server = store.pool.server();
    let (client, mut connection) = server.config.connect(server.tls.clone()).await?;
    let (sender, mut notified) = tokio::sync::mpsc::unbounded_channel();
    let reading = tokio::spawn(async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            match message {
                Ok(AsyncMessage::Notification(notification)) => {
                    let _ = sender.send(notification.payload().parse::<i32>().ok());
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
    });
    let _reading = AbortOnDrop(reading.abort_handle());
    client.batch_execute(&format!("LISTEN \"{}\"", store.schema)).await?;
    // Notifications may have been lost before.
    store.listeners.wake_all(Timestamp::EPOCH);
    while let Some(bucket) = notified.recv().await {
        wake(store, &client, bucket).await?;
        let (store, bucket) = (Arc::clone(store), bucket);
        tokio::spawn(async move {
            tokio::time::sleep(REPEATED_AFTER).await;
            wake_known(&store, bucket);
        });
    }
    Ok(())
}

/// Wakes the listeners of the bucket's queues. Asks the server for the buckets of new queues.
async fn wake(
    store: &Store,
    client: &tokio_postgres::Client,
    bucket: Option<i32>,
) -> Result<(), tokio_postgres::Error> {
    let queues = store.listeners.queues();
    let unknown: Vec<QueueName> = {
        let buckets = lock(&store.buckets);
        queues.into_iter().filter(|queue| !buckets.contains_key(queue)).collect()
    };
    if !unknown.is_empty() {
        let names: Vec<&str> = unknown.iter().map(QueueName::as_str).collect();
        let sql = in_schema(
            &store.schema,
            "SELECT dq.bucket_of(name) FROM unnest($1) WITH ORDINALITY AS queue (name, number) \
             ORDER BY number",
        );
        let rows = client.query_typed(&sql, &[(&names, Type::TEXT_ARRAY)]).await?;
        let mut buckets = lock(&store.buckets);
        for (queue, row) in unknown.into_iter().zip(rows) {
            buckets.insert(queue, row.try_get(0)?);
        }
    }
    wake_known(store, bucket);
    Ok(())
}

fn wake_known(store: &Store, bucket: Option<i32>) {
    let buckets = lock(&store.buckets);
    for queue in store.listeners.queues() {
        if buckets.get(&queue).copied() == bucket {
            // The job's due time is unknown; the claim that follows returns it.
            store.listeners.wake(&queue, Timestamp::EPOCH);
        }
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
