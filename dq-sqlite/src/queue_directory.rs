//! All queue ids, in memory: a call that names thousands of queues looks none of them up and visits
//! only those with jobs.

use std::collections::HashMap;

use dq_core::{QueueName, Timestamp};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row};

use crate::error::StoreResult;
use crate::row;
use crate::statements::Statements;

/// Queues are only added, and ids grow.
#[derive(Debug, Default)]
pub(crate) struct QueueDirectory {
    ids: HashMap<QueueName, i64>,
    /// Another program may correct their names.
    invalid: Vec<i64>,
    newest: Option<QueueRow>,
}

#[derive(Debug, PartialEq, Eq)]
struct QueueRow {
    queue_id: i64,
    /// Perhaps no valid name.
    name: Vec<u8>,
}

impl QueueRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let name = match row.get_ref(1)? {
            ValueRef::Text(name) | ValueRef::Blob(name) => name.to_vec(),
            _ => Vec::new(),
        };
        Ok(Self { queue_id: row.get(0)?, name })
    }
}

impl QueueDirectory {
    /// Reads new queues. Reads all if the newest known queue is gone: the file was restored from a
    /// backup.
    pub(crate) fn refresh(
        &mut self,
        conn: &Connection,
        statements: &Statements,
    ) -> StoreResult<()> {
        let mut newest = conn.prepare_cached(&statements.newest_queue)?;
        let newest = newest.query_row([], QueueRow::read).optional()?;
        if newest != self.newest {
            if !self.is_known(conn, statements)? {
                *self = Self::default();
            }
            let after = self.newest.as_ref().map_or(i64::MIN, |known| known.queue_id);
            self.add_after(after, conn, statements)?;
            self.newest = newest;
        }
        self.recheck_invalid(conn, statements)
    }

    fn is_known(&self, conn: &Connection, statements: &Statements) -> StoreResult<bool> {
        let Some(known) = &self.newest else {
            return Ok(true);
        };
        let mut by_id = conn.prepare_cached(&statements.queue_by_id)?;
        let stored = by_id.query_row([known.queue_id], QueueRow::read).optional()?;
        Ok(stored.as_ref() == Some(known))
    }

    fn add_after(
        &mut self,
        queue_id: i64,
        conn: &Connection,
        statements: &Statements,
    ) -> StoreResult<()> {
        let mut added = conn.prepare_cached(&statements.queues_after)?;
        let mut rows = added.query([queue_id])?;
        while let Some(row) = rows.next()? {
            match row::queue_name(row.get_ref(1)?) {
                Ok(name) => drop(self.ids.insert(name, row.get(0)?)),
                Err(_) => self.invalid.push(row.get(0)?),
            }
        }
        Ok(())
    }

    fn recheck_invalid(&mut self, conn: &Connection, statements: &Statements) -> StoreResult<()> {
        let mut still_invalid = Vec::new();
        for queue_id in std::mem::take(&mut self.invalid) {
            let mut by_id = conn.prepare_cached(&statements.queue_by_id)?;
            let mut rows = by_id.query([queue_id])?;
            match rows.next()?.map(|row| row.get_ref(1).map(row::queue_name)).transpose()? {
                Some(Ok(name)) => drop(self.ids.insert(name, queue_id)),
                _ => still_invalid.push(queue_id),
            }
        }
        self.invalid = still_invalid;
        Ok(())
    }

    /// The existing queues, in id order.
    pub(crate) fn find<'a>(&self, queues: impl Iterator<Item = &'a QueueName>) -> QueueSet {
        let id = |(place, queue)| self.ids.get(queue).map(|queue_id| (*queue_id, place));
        let mut queues: Vec<(i64, usize)> = queues.enumerate().filter_map(id).collect();
        queues.sort_unstable();
        QueueSet { queues }
    }
}

/// Queue ids, each with its index in the caller's list.
#[derive(Debug, Clone, Default)]
pub(crate) struct QueueSet {
    queues: Vec<(i64, usize)>,
}

impl QueueSet {
    pub(crate) fn contains_all(&self, others: &Self) -> bool {
        let mut ids = self.queues.iter().map(|(id, _)| *id);
        // Both are in id order; ids may repeat.
        let mut last = None;
        others.queues.iter().all(|(id, _)| {
            last == Some(*id) || {
                last = Some(*id);
                ids.any(|own| own == *id)
            }
        })
    }

    pub(crate) fn contains(&self, queue_id: i64) -> bool {
        self.queues.binary_search_by_key(&queue_id, |(id, _)| *id).is_ok()
    }

    pub(crate) fn places(&self, queue_id: i64) -> impl Iterator<Item = usize> {
        let first = self.queues.partition_point(|(id, _)| *id < queue_id);
        let same = self.queues[first..].iter().take_while(move |(id, _)| *id == queue_id);
        same.map(|(_, place)| *place)
    }

    /// Calls `visit` with index, id and first due time for each active queue with waiting jobs.
    ///
    /// Skips ids in turns with the `due` table: it visits neither queues without jobs nor other
    /// queues' jobs, and the smaller set bounds the query count.
    pub(crate) fn for_each_waiting(
        &self,
        conn: &Connection,
        statements: &Statements,
        mut visit: impl FnMut(usize, i64, Timestamp),
    ) -> StoreResult<()> {
        let mut next_waiting = conn.prepare_cached(&statements.next_waiting)?;
        let mut at = 0;
        while let Some((wanted, _)) = self.queues.get(at) {
            let waiting = next_waiting
                .query_row([wanted], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                .optional()?;
            let Some((queue_id, due, paused)): Option<(i64, i64, bool)> = waiting else {
                break;
            };
            at += self.queues[at..].partition_point(|(id, _)| *id < queue_id);
            while let Some((_, place)) = self.queues.get(at).filter(|(id, _)| *id == queue_id) {
                if !paused {
                    visit(*place, queue_id, Timestamp::from_millis(due));
                }
                at += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    fn names(ids: impl IntoIterator<Item = usize>) -> Vec<QueueName> {
        ids.into_iter().map(|id| QueueName::new(format!("q{id}")).unwrap()).collect()
    }

    fn store(queues: usize) -> (Connection, Statements) {
        let mut conn = Connection::open_in_memory().unwrap();
        schema::ensure(&mut conn, "dq_").unwrap();
        for name in names(1..=queues) {
            conn.execute("INSERT INTO dq_queue (name) VALUES (?1)", [name.as_str()]).unwrap();
        }
        (conn, Statements::new("dq_"))
    }

    fn ids_of(directory: &QueueDirectory, name: &str) -> Vec<usize> {
        let set = directory.find([QueueName::new(name).unwrap()].iter());
        set.queues.iter().map(|(id, _)| *id as usize).collect()
    }

    #[test]
    fn only_wanted_queues_with_waiting_jobs_are_visited() {
        let (conn, statements) = store(50);
        conn.execute_batch(
            "INSERT INTO dq_due (q, at, seq) VALUES (3, 30, 1), (3, 20, 2), (7, 5, 3), (50, 1, 4);
             UPDATE dq_queue SET paused = 1 WHERE q = 50",
        )
        .unwrap();
        let mut directory = QueueDirectory::default();
        directory.refresh(&conn, &statements).unwrap();
        let visited = |queues: Vec<QueueName>| {
            let mut visited = Vec::new();
            let set = directory.find(queues.iter());
            set.for_each_waiting(&conn, &statements, |place, queue_id, due| {
                visited.push((place, queue_id, due.as_millis()));
            })
            .unwrap();
            visited
        };
        assert_eq!(visited(names([3, 4, 7, 50])), [(0, 3, 20), (2, 7, 5)]);
        assert_eq!(visited(names([60, 7, 8, 3, 7])), [(3, 3, 20), (1, 7, 5), (4, 7, 5)]);
        assert_eq!(visited(names([1, 2, 49])), []);
        assert_eq!(visited(Vec::new()), []);
    }

    #[test]
    fn added_restored_and_corrected_queues_are_found() {
        let (conn, statements) = store(2);
        let mut directory = QueueDirectory::default();
        directory.refresh(&conn, &statements).unwrap();
        assert_eq!(ids_of(&directory, "q2"), [2]);
        conn.execute("INSERT INTO dq_queue (name) VALUES ('q3'), ('a' || char(10))", []).unwrap();
        directory.refresh(&conn, &statements).unwrap();
        assert_eq!(ids_of(&directory, "q3"), [3]);
        conn.execute("UPDATE dq_queue SET name = 'corrected' WHERE q = 4", []).unwrap();
        directory.refresh(&conn, &statements).unwrap();
        assert_eq!(ids_of(&directory, "corrected"), [4]);
        // As after restoring a backup with two queues and adding others.
        conn.execute_batch(
            "DELETE FROM dq_queue WHERE q > 2;
             INSERT INTO dq_queue (name) VALUES ('x'), ('y'), ('q3')",
        )
        .unwrap();
        directory.refresh(&conn, &statements).unwrap();
        assert_eq!((ids_of(&directory, "q3"), ids_of(&directory, "corrected")), (vec![5], vec![]));
    }
}
