//! The results table, with one column per peer.

use std::fmt;

use crate::peer::Peer;

pub(crate) struct Table {
    columns: Vec<String>,
    rows: Vec<(String, Vec<String>)>,
}

impl Table {
    pub(crate) fn new(peers: &[Peer]) -> Self {
        let columns = peers.iter().map(|peer| format!("{} {}", peer.name, peer.version));
        Self { columns: columns.collect(), rows: Vec::new() }
    }

    /// Sets a cell. Rows keep the order in which they were first set. Unset cells show "–".
    pub(crate) fn set(&mut self, row: String, column: usize, value: String) {
        let at = self.rows.iter().position(|(name, _)| *name == row).unwrap_or_else(|| {
            self.rows.push((row, vec![String::from("–"); self.columns.len()]));
            self.rows.len() - 1
        });
        self.rows[at].1[column] = value;
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| | {} |", self.columns.join(" | "))?;
        writeln!(f, "|---|{}", "---|".repeat(self.columns.len()))?;
        for (name, cells) in &self.rows {
            writeln!(f, "| {name} | {} |", cells.join(" | "))?;
        }
        Ok(())
    }
}
