//! Listens to the server's notifications on a connection of its own, which poolers in transaction
//! mode do not allow: then runners find jobs by their claims only.

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

/// The server only notifies of jobs due within 1.5 s (`announce_due` in `common.sql`). So a process
/// wakes its runners if they have not claimed for this long, because their sweep interval is
/// longer.
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
                    let _ = sender.send(Notice::parse(notification.payload()));
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
    while let Some(notice) = notified.recv().await {
        // A later version's notice: claims once a second do without it.
        let Some(notice) = notice else { continue };
        find_buckets(store, &client).await?;
        wake(store, &notice);
        if notice.room.is_none() {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                tokio::time::sleep(REPEATED_AFTER).await;
                wake(&store, &notice);
            });
        }
    }
    Ok(())
}

/// A notification about the queues of a bucket.
struct Notice {
    bucket: i32,
    /// In place of a new job: the limits let jobs start from this time on. Calls one worker, or all
    /// if the name is empty.
    room: Option<(Timestamp, String)>,
}

impl Notice {
    fn parse(payload: &str) -> Option<Self> {
        let Some((bucket, room)) = payload.split_once(' ') else {
            return Some(Self { bucket: payload.parse().ok()?, room: None });
        };
        let (due, worker) = room.split_once(' ')?;
        let due = Timestamp::from_millis(due.parse().ok()?);
        Some(Self { bucket: bucket.parse().ok()?, room: Some((due, worker.to_owned())) })
    }
}

/// Asks the server for the buckets of queues with new listeners.
async fn find_buckets(
    store: &Store,
    client: &tokio_postgres::Client,
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
    Ok(())
}

/// Wakes the listeners of the bucket's queues.
fn wake(store: &Store, notice: &Notice) {
    let buckets = lock(&store.buckets);
    let queues = store.listeners.queues().into_iter();
    for queue in queues.filter(|queue| buckets.get(queue) == Some(&notice.bucket)) {
        match &notice.room {
            // The job's due time is unknown; the claim that follows returns it.
            None => store.listeners.wake(&queue, lock(&store.bounds).wakes_at(&queue)),
            Some((due, worker)) if worker.is_empty() => store.listeners.wake(&queue, *due),
            Some((due, worker)) => {
                store.listeners.wake_if_present(&queue, worker, *due);
            }
        }
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_of_a_new_job_or_of_room() {
        let parse = |payload| Notice::parse(payload).map(|notice| (notice.bucket, notice.room));
        let room = |due, worker: &str| Some((Timestamp::from_millis(due), worker.to_owned()));
        assert_eq!(parse("17"), Some((17, None)));
        assert_eq!(parse("17 5 web 1"), Some((17, room(5, "web 1"))));
        assert_eq!(parse("17 0 "), Some((17, room(0, ""))));
        for later in ["", "later", "17 5", "17 later web"] {
            assert_eq!(parse(later), None, "{later:?}");
        }
    }
}
