//! What the calls share: connections, schema, bounds and listeners.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Instant;

use dq_core::sync::lock;
use dq_core::{Listeners, QueueName, Result, Timestamp};
use tokio_postgres::Row;

use crate::bounds::Bounds;
use crate::connect::{Param, Pool, Statement};
use crate::error::Effect;

pub(crate) struct Store {
    pub(crate) pool: Pool,
    pub(crate) schema: String,
    pub(crate) listeners: Listeners,
    pub(crate) bounds: Mutex<Bounds>,
    pub(crate) last_claims: Mutex<HashMap<QueueName, Instant>>,
    /// Queues with newly ended jobs: their histories may exceed the limits.
    pub(crate) ended: Mutex<HashSet<QueueName>>,
    /// Buckets of queues that have listeners.
    pub(crate) buckets: Mutex<HashMap<QueueName, i32>>,
}

impl Store {
    /// Runs a statement, in which `dq` stands for the schema.
    pub(crate) async fn query(
        &self,
        effect: Effect,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>> {
        let sql = self.in_schema(sql);
        self.pool.query(Statement { sql: &sql, effect }, params).await
    }

    pub(crate) fn in_schema<'a>(&self, sql: &'a str) -> Cow<'a, str> {
        in_schema(&self.schema, sql)
    }

    pub(crate) async fn read(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.query(Effect::Reads, sql, params).await
    }

    pub(crate) async fn change(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.query(Effect::Changes, sql, params).await
    }

    pub(crate) fn mark_ended(&self, queue: &QueueName) {
        lock(&self.ended).insert(queue.clone());
    }

    pub(crate) async fn now(&self) -> Result<Timestamp> {
        let rows = self.read("SELECT dq.now_ms()", &[]).await?;
        Ok(Timestamp::from_millis(rows[0].get(0)))
    }
}

/// Replaces the schema `dq` of our own SQL, which has `dq.` nowhere else. Quotes the name, which
/// may be a keyword like `user`.
pub(crate) fn in_schema<'a>(schema: &str, sql: &'a str) -> Cow<'a, str> {
    if schema == "dq" { sql.into() } else { sql.replace("dq.", &format!("\"{schema}\".")).into() }
}
