//! State that the backend, the writer thread and the readers share.

use std::sync::Arc;

use dq_core::{Clock, Listeners};

use crate::config::SqliteConfig;
use crate::statements::Statements;

/// Identifies a store: 16 random bytes in the `meta` table, written when the tables are created.
pub(crate) type StoreId = [u8; 16];

/// Shared state of an open store.
#[derive(Debug)]
pub(crate) struct StoreShared {
    pub(crate) config: SqliteConfig,
    pub(crate) statements: Statements,
    pub(crate) clock: Arc<dyn Clock>,
    /// Listeners of this process.
    pub(crate) listeners: Listeners,
}
