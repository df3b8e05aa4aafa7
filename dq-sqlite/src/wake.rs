//! Hints for listeners of this process, about what this or another process wrote.

use std::time::Duration;

use dq_core::{Listeners, QueueName, Wakeups};
use rusqlite::{Connection, OptionalExtension};

use crate::error::Outcome;
use crate::sql::Sql;
use crate::tx::Wake;

/// How often an idle writer looks whether others have written. A look reads a number in shared
/// memory and costs a microsecond.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Who listens, and to what.
#[derive(Debug, Default)]
pub(crate) struct Switchboard {
    listeners: Listeners,
}

impl Switchboard {
    pub(crate) fn listen(&self, queues: &[QueueName]) -> Wakeups {
        self.listeners.listen(queues)
    }

    /// Whether looking for the commits of others is of use to anybody.
    pub(crate) fn is_used(&self) -> bool {
        !self.listeners.is_empty()
    }

    pub(crate) fn send(&self, wakes: Vec<Wake>) {
        for (queue, due) in wakes {
            self.listeners.wake(&queue, due);
        }
    }

    /// Tells every listener when its first job is due, after a commit of which it is not known
    /// what it changed.
    pub(crate) fn send_all(&self, conn: &Connection, sql: &Sql) -> Outcome<()> {
        for queue in self.listeners.queues() {
            let mut first = conn.prepare_cached(&sql.first_due)?;
            let due = first.query_row([queue.as_str()], |row| row.get(0)).optional()?;
            if let Some(due) = due {
                self.listeners.wake(&queue, dq_core::Timestamp::from_millis(due));
            }
        }
        Ok(())
    }
}

/// Tells whether other connections, of any process, have committed.
#[derive(Debug)]
pub(crate) struct Neighbours {
    version: i64,
}

impl Neighbours {
    pub(crate) fn meet(conn: &Connection) -> rusqlite::Result<Self> {
        Ok(Self { version: data_version(conn)? })
    }

    /// Whether they have since the last look. Commits of `conn` itself do not count.
    pub(crate) fn have_written(&mut self, conn: &Connection) -> rusqlite::Result<bool> {
        let version = data_version(conn)?;
        Ok(std::mem::replace(&mut self.version, version) != version)
    }
}

fn data_version(conn: &Connection) -> rusqlite::Result<i64> {
    conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}
