//! All queue ids, in memory: a call that names thousands of queues looks none of them up and visits
//! only those with jobs.

use std::collections::HashMap;

use dq_core::{QueueName, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};

use crate::error::StoreResult;
use crate::row;
use crate::statements::Statements;

/// The ids of all queues. This crate only adds queues, and ids grow, so the newest row shows a
/// change.
#[derive(Debug, Default)]
pub(crate) struct QueueDirectory {
    ids: HashMap<QueueName, i64>,
    newest: Option<QueueRow>,
    /// The ids of queues with an invalid name. Another program may correct a name, which leaves the
    /// newest row unchanged.
    invalid: Vec<i64>,
}

/// The name, unless it is invalid, and the id.
type QueueRow = (Option<QueueName>, i64);

fn queue(row: &Row<'_>) -> rusqlite::Result<QueueRow> {
    Ok((valid_name(row)?, row.get(1)?))
}

fn valid_name(row: &Row<'_>) -> rusqlite::Result<Option<QueueName>> {
    Ok(row::queue_name(row.get_ref(0)?).ok())
}

impl QueueDirectory {
    /// Reads the queues again if the newest row has changed: a queue was added, or a backup was
    /// restored. Otherwise reads only the queues with an invalid name.
    pub(crate) fn refresh(
        &mut self,
        conn: &Connection,
        statements: &Statements,
    ) -> StoreResult<()> {
        let newest =
            conn.prepare_cached(&statements.newest_queue)?.query_row([], queue).optional()?;
        if newest == self.newest {
            return self.refresh_invalid(conn, statements);
        }
        let mut directory = Self { newest, ..Self::default() };
        for queue in conn.prepare_cached(&statements.queue_names)?.query_map([], queue)? {
            match queue? {
                (Some(name), queue_id) => {
                    directory.ids.insert(name, queue_id);
                }
                (None, queue_id) => directory.invalid.push(queue_id),
            }
        }
        *self = directory;
        Ok(())
    }

    /// Adds the queues whose names have become valid.
    fn refresh_invalid(&mut self, conn: &Connection, statements: &Statements) -> StoreResult<()> {
        let mut still_invalid = Vec::new();
        for queue_id in &self.invalid {
            let mut find = conn.prepare_cached(&statements.name_queue)?;
            match find.query_row([queue_id], valid_name).optional()?.flatten() {
                Some(name) => {
                    self.ids.insert(name, *queue_id);
                }
                None => still_invalid.push(*queue_id),
            }
        }
        // Only now, so that an error loses no id.
        self.invalid = still_invalid;
        Ok(())
    }

    /// The existing queues, in id order.
    pub(crate) fn find<'a>(&self, queues: impl Iterator<Item = &'a QueueName>) -> QueueSet {
        let id = |(position, queue)| self.ids.get(queue).map(|queue_id| (*queue_id, position));
        let mut queues: Vec<(i64, usize)> = queues.enumerate().filter_map(id).collect();
        queues.sort_unstable();
        QueueSet { queues }
    }
}

/// Queue ids, each with its position in the caller's list.
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

    /// The queue's positions in the caller's list.
    pub(crate) fn positions(&self, queue_id: i64) -> impl Iterator<Item = usize> {
        let first = self.queues.partition_point(|(id, _)| *id < queue_id);
        let same = self.queues[first..].iter().take_while(move |(id, _)| *id == queue_id);
        same.map(|(_, position)| *position)
    }

    /// Calls `visit` with position, id and first due time for each active queue with waiting jobs.
    ///
    /// A leapfrog join of the wanted ids and the `due` table: it visits neither queues without jobs
    /// nor other queues' jobs, and the smaller set bounds the query count.
    pub(crate) fn for_each_waiting(
        &self,
        conn: &Connection,
        statements: &Statements,
        mut visit: impl FnMut(usize, i64, Timestamp),
    ) -> StoreResult<()> {
        let mut next_waiting = conn.prepare_cached(&statements.next_waiting)?;
        let mut next = 0;
        while let Some((wanted, _)) = self.queues.get(next) {
            let waiting = next_waiting
                .query_row([wanted], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                .optional()?;
            let Some((queue_id, due, paused)): Option<(i64, i64, bool)> = waiting else {
                break;
            };
            next += self.queues[next..].partition_point(|(id, _)| *id < queue_id);
            while let Some((_, position)) = self.queues.get(next).filter(|(id, _)| *id == queue_id)
            {
                if !paused {
                    visit(*position, queue_id, Timestamp::from_millis(due));
                }
                next += 1;
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
    fn added_and_restored_queues_are_found() {
        let (conn, statements) = store(2);
        let mut directory = QueueDirectory::default();
        directory.refresh(&conn, &statements).unwrap();
        assert_eq!(ids_of(&directory, "q2"), [2]);

        conn.execute("INSERT INTO dq_queue (name) VALUES ('q3')", []).unwrap();
        directory.refresh(&conn, &statements).unwrap();
        assert_eq!(ids_of(&directory, "q3"), [3]);

        // A backup with two queues is restored, and other queues are added.
        conn.execute_batch(
            "DELETE FROM dq_queue WHERE q > 2; INSERT INTO dq_queue (name) VALUES ('x'), ('q3')",
        )
        .unwrap();
        directory.refresh(&conn, &statements).unwrap();
        assert_eq!(ids_of(&directory, "q3"), [4]);
    }

    #[test]
    fn only_queues_with_an_invalid_name_are_read_again_while_the_newest_row_is_unchanged() {
        let (conn, statements) = store(2);
        conn.execute("INSERT INTO dq_queue (name) VALUES ('a' || char(10)), ('newest')", [])
            .unwrap();
        let mut directory = QueueDirectory::default();
        directory.refresh(&conn, &statements).unwrap();

        conn.execute("UPDATE dq_queue SET name = 'renamed' WHERE q = 1", []).unwrap();
        directory.refresh(&conn, &statements).unwrap();
        assert_eq!(ids_of(&directory, "q1"), [1], "the map is kept");

        conn.execute("UPDATE dq_queue SET name = 'corrected' WHERE q = 3", []).unwrap();
        directory.refresh(&conn, &statements).unwrap();
        assert_eq!(ids_of(&directory, "corrected"), [3]);
    }
}
