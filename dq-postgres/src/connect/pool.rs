//! The connection pool.

use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, PoolError, RecyclingMethod};
use dq_core::{Error, ErrorKind, Result};
use tokio::sync::RwLock;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{IsolationLevel, Row};

use super::server::Server;
use crate::error::{self, Effect};

/// Attempts at a statement that the server has rolled back because of another one.
const ATTEMPTS: usize = 20;

/// How many times `response_timeout` a scan may take.
const SCAN_PATIENCE: u32 = 12;

/// A parameter with its type.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Statement<'a> {
    pub(crate) sql: &'a str,
    pub(crate) effect: Effect,
}

pub(crate) struct Pool {
    pool: deadpool_postgres::Pool,
    server: Server,
    response_timeout: Duration,
    prepare: bool,
    /// Calls hold it for reading. It is true after closing.
    closed: RwLock<bool>,
}

impl Pool {
    pub(crate) fn new(
        server: Server,
        connections: u32,
        response_timeout: Duration,
        prepare: bool,
    ) -> Result<Self> {
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(server.config.clone(), server.tls.clone(), recycling);
        let pool = deadpool_postgres::Pool::builder(manager)
            .max_size(connections as usize)
            .build()
            .map_err(|error| Error::new(ErrorKind::Internal, format!("no pool: {error}")))?;
        Ok(Self { pool, server, response_timeout, prepare, closed: RwLock::new(false) })
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Runs one statement in its own transaction. A repetition sets the isolation for which the
    /// functions are made: with the snapshot of a stricter default, calls that wait for each other
    /// fail again and again. A scan sets JIT off.
    pub(crate) async fn query(
        &self,
        statement: Statement<'_>,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        let mut attempts = 0;
        self.with_connection(statement.effect, async |connection| {
            loop {
                attempts += 1;
                let needs_settings = attempts > 1 || statement.effect == Effect::Scans;
                let rows = match self.prepare {
                    _ if needs_settings => {
                        query_with_settings(connection, statement.sql, params).await
                    }
                    true => query_prepared(connection, statement.sql, params).await,
                    // Poolers in transaction mode may be in between.
                    false => connection.query_typed(statement.sql, params).await,
                };
                let error = match rows {
                    Ok(rows) => return Ok(rows),
                    Err(error) => error,
                };
                let is_rolled_back = matches!(
                    error.code(),
                    Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED)
                );
                if !is_rolled_back || attempts == ATTEMPTS {
                    return Err(error);
                }
            }
        })
        .await
    }

    /// Runs several statements without parameters, in a transaction if they begin one.
    pub(crate) async fn execute_all(&self, sql: &str) -> Result<()> {
        self.with_connection(Effect::Changes, async |connection| {
            connection.batch_execute(sql).await
        })
        .await
    }

    async fn with_connection<T>(
        &self,
        effect: Effect,
        call: impl AsyncFnOnce(&mut Object) -> std::result::Result<T, tokio_postgres::Error>,
    ) -> Result<T> {
        let closed = self.closed.read().await;
        if *closed {
            return Err(error::closed());
        }
        let mut connection = self.get().await?;
        let limit = match effect {
            Effect::Scans => self.response_timeout.saturating_mul(SCAN_PATIENCE),
            Effect::Reads | Effect::Changes => self.response_timeout,
        };
        match tokio::time::timeout(limit, call(&mut connection)).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(error::from_statement(&self.server, effect, &error)),
            Err(_) => {
                // Its reply may still come, so no other call may use the connection.
                drop(Object::take(connection));
                Err(error::timed_out(&self.server, effect, limit))
            }
        }
    }

    async fn get(&self) -> Result<Object> {
        match tokio::time::timeout(self.response_timeout, self.pool.get()).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(PoolError::Backend(error))) => Err(error::from_connect(&self.server, &error)),
            Ok(Err(error)) => Err(Error::new(ErrorKind::Internal, error.to_string())),
            Err(_) => Err(error::no_connection(&self.server, self.response_timeout)),
        }
    }

    /// Waits for the calls in progress. Later calls fail.
    pub(crate) async fn close(&self) {
        *self.closed.write().await = true;
        self.pool.close();
    }

    pub(crate) async fn is_closed(&self) -> bool {
        *self.closed.read().await
    }
}

async fn query_with_settings(
    connection: &mut Object,
    sql: &str,
    params: &[Param<'_>],
) -> std::result::Result<Vec<Row>, tokio_postgres::Error> {
    let isolation = IsolationLevel::ReadCommitted;
    let transaction = connection.build_transaction().isolation_level(isolation).start().await?;
    // The server compiles a statement that seems to read many rows, for up to a second, before it
    // reads the first one.
    transaction.batch_execute("SET LOCAL jit = off").await?;
    let rows = transaction.query_typed(sql, params).await?;
    transaction.commit().await?;
    Ok(rows)
}

async fn query_prepared(
    connection: &Object,
    sql: &str,
    params: &[Param<'_>],
) -> std::result::Result<Vec<Row>, tokio_postgres::Error> {
    let (values, types): (Vec<_>, Vec<Type>) = params.iter().cloned().unzip();
    let statement = connection.prepare_typed_cached(sql, &types).await?;
    connection.query(&statement, &values).await
}
