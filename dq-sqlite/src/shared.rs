//! What all parts of an open store share.

use std::sync::Arc;

use dq_core::Clock;

use crate::config::SqliteConfig;
use crate::sql::Sql;
use crate::wake::Switchboard;

/// Tells one store from another.
pub(crate) type StoreId = [u8; 16];

/// What the writer, the readers and their callers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: SqliteConfig,
    pub(crate) sql: Sql,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) switchboard: Switchboard,
}
