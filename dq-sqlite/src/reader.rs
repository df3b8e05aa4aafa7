//! Connections that read, so that looking never waits for writing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dq_core::{Error, ErrorKind, Result, Timestamp};
use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::connection::open_reader;
use crate::error::{Failure, Outcome};
use crate::shared::Shared;
use crate::sql::Sql;

/// Connections at once.
const READERS: usize = 4;

/// What a reader sees: one consistent moment of the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'c> {
    pub(crate) conn: &'c Connection,
    pub(crate) sql: &'c Sql,
    pub(crate) now: Timestamp,
}

/// What a look at the store brought.
#[derive(Debug)]
pub(crate) enum Look<T> {
    Seen(T),
    /// A lease has ended that is still in the tables: have the writer give it back, then look
    /// again.
    Lapsed,
}

/// A pool of connections that read.
#[derive(Debug)]
pub(crate) struct Readers {
    shared: Arc<Shared>,
    turns: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Readers {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, turns: Arc::new(Semaphore::new(READERS)), idle: Arc::default() }
    }

    /// Has `look` done on a thread that may block.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        operation: &'static str,
        look: impl FnOnce(View<'_>) -> Outcome<T> + Send + 'static,
    ) -> Result<Look<T>> {
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| {
            Error::new(ErrorKind::Closed, "the store has been closed").operation(operation)
        })?;
        let (shared, idle) = (Arc::clone(&self.shared), Arc::clone(&self.idle));
        let looked = tokio::task::spawn_blocking(move || {
            // The turn ends with the look and not with the caller's patience: a thread that blocks
            // cannot be called off.
            let _turn = turn;
            let conn = match lock(&idle).pop() {
                Some(conn) => conn,
                None => open_reader(&shared.config)?,
            };
            let seen = in_one_moment(&conn, &shared, look)?;
            lock(&idle).push(conn);
            Ok::<_, Failure>(seen)
        });
        match looked.await {
            Ok(looked) => {
                looked.map_err(|failure| failure.into_error(operation, &self.shared.config.path))
            }
            Err(error) => Err(Error::new(ErrorKind::Internal, "a read was broken off")
                .source(error)
                .operation(operation)),
        }
    }

    /// Waits for those who read and closes their connections.
    pub(crate) async fn close(&self) {
        // All turns at once: nobody is reading any more.
        let all = self.turns.acquire_many(READERS as u32).await;
        self.turns.close();
        lock(&self.idle).clear();
        drop(all);
    }
}

/// The transaction is short: while it is open the log cannot be reused.
fn in_one_moment<T>(
    conn: &Connection,
    shared: &Shared,
    look: impl FnOnce(View<'_>) -> Outcome<T>,
) -> Outcome<Look<T>> {
    let tx = conn.unchecked_transaction()?;
    let view = View { conn: &tx, sql: &shared.sql, now: shared.clock.now() };
    let lapsed = tx.prepare_cached(&shared.sql.has_lapsed)?.exists([view.now.as_millis()])?;
    if lapsed {
        return Ok(Look::Lapsed);
    }
    look(view).map(Look::Seen)
}

fn lock(idle: &Mutex<Vec<Connection>>) -> MutexGuard<'_, Vec<Connection>> {
    // Connections are pushed and popped whole.
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}
