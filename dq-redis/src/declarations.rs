//! The limits that this process has declared, in case the server loses them.

use std::collections::HashMap;

use dq_core::{Flow, QueueName};

/// The last declaration of each queue that has limits, or had some.
#[derive(Debug, Default)]
pub(crate) struct Declarations(pub(crate) HashMap<QueueName, Declaration>);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Declaration {
    pub(crate) limits: Flow,
    /// By the server's clock, in microseconds.
    pub(crate) at: u64,
    /// The connection on which the server has it; `None` if the server may have lost it.
    pub(crate) connection: Option<u64>,
}

impl Declarations {
    /// Returns those that the server may not have on this connection.
    pub(crate) fn missing(&self, connection: u64) -> Vec<(QueueName, Declaration)> {
        let is_missing = |it: &Declaration| it.connection != Some(connection);
        let missing = self.0.iter().filter(|(_, it)| is_missing(it));
        missing.map(|(queue, it)| (queue.clone(), *it)).collect()
    }
}
