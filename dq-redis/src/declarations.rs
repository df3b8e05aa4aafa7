//! The limits that this process has declared, in case the server loses them.

use std::collections::HashMap;

use dq_core::{Flow, QueueName};

/// The last declaration of each queue with limits.
#[derive(Debug, Default)]
pub(crate) struct Declarations {
    pub(crate) limits: HashMap<QueueName, Flow>,
    /// The connection on which the server has them.
    pub(crate) connection: Option<u64>,
}
