//! All queue ids, in memory: a call that names thousands of queues looks none of them up and visits
//! only queues with jobs.

use std::collections::HashMap;

use dq_core::{QueueName, Timestamp};
use rusqlite::{Connection, OptionalExtension};

use crate::error::StoreResult;
use crate::row;
use crate::statements::Statements;

/// The ids of all queues with a valid name.
#[derive(Debug, Default)]
pub(crate) struct QueueDirectory {
    ids: HashMap<QueueName, i64>,
    /// The stored name and id of the newest queue. This crate only adds queues, and ids grow.
    newest: Option<(Vec<u8>, i64)>,
}

impl QueueDirectory {
    /// Reads the queues again if the newest row has changed: a queue was added, or a backup was
    /// restored.
    pub(crate) fn refresh(
        &mut self,
        conn: &Connection,
        statements: &Statements,
    ) -> StoreResult<()> {
        let newest = conn
            .prepare_cached(&statements.newest_queue)?
            .query_row([], |row| Ok((row.get_ref(0)?.as_bytes()?.to_vec(), row.get(1)?)))
            .optional()?;
        if newest != self.newest {
            let mut names = conn.prepare_cached(&statements.queue_names)?;
            let ids = names.query_map([], |row| {
                Ok(row::queue_name(row.get_ref(0)?).ok().zip(Some(row.get(1)?)))
            })?;
            self.ids =
                ids.filter_map(rusqlite::Result::transpose).collect::<rusqlite::Result<_>>()?;
            self.newest = newest;
        }
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

    #[test]
    fn added_and_restored_queues_are_found_and_invalid_names_left_out() {
        let mut conn = Connection::open_in_memory().unwrap();
        schema::ensure(&mut conn, "dq_").unwrap();
        let statements = Statements::new("dq_");
        let mut directory = QueueDirectory::default();
        // Returns the id of the queue `q3` after a change.
        let mut found_after = |sql: &str| {
            conn.execute_batch(sql).unwrap();
            directory.refresh(&conn, &statements).unwrap();
            let set = directory.find([QueueName::new("q3").unwrap()].iter());
            set.queues.first().map(|(id, _)| *id)
        };
        let insert = "INSERT INTO dq_queue (name) VALUES";
        assert_eq!(found_after(&format!("{insert} ('q1'), ('a' || char(10))")), None);
        assert_eq!(found_after(&format!("{insert} ('q3')")), Some(3));
        // A backup with two queues is restored, and other queues are added.
        let restored = format!("DELETE FROM dq_queue WHERE q > 2; {insert} ('x'), ('q3')");
        assert_eq!(found_after(&restored), Some(4));
    }
}
