//! One transaction as the operations see it: the time, the counters, and what is written once at
//! its end instead of once per job.

use std::collections::HashMap;

use dq_core::{QueueName, Timestamp, Totals};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use crate::error::Outcome;
use crate::row;
use crate::schema;
use crate::sql::Sql;

/// The numbers of queues. Queues are never deleted, so what is known stays true; only a rollback
/// can take a number back.
#[derive(Debug, Default)]
pub(crate) struct Names {
    numbers: HashMap<QueueName, i64>,
    names: HashMap<i64, QueueName>,
}

impl Names {
    pub(crate) fn forget(&mut self) {
        self.numbers.clear();
        self.names.clear();
    }

    fn learn(&mut self, name: &QueueName, q: i64) {
        self.numbers.insert(name.clone(), q);
        self.names.insert(q, name.clone());
    }
}

/// What is kept in memory while a transaction runs.
#[derive(Debug)]
struct Ledger {
    seq: i64,
    token: i64,
    changed: bool,
    totals: HashMap<i64, Totals>,
    earliest: HashMap<i64, Timestamp>,
}

/// A hint for listeners: this queue has something due then.
pub(crate) type Wake = (QueueName, Timestamp);

/// A transaction that is open on `conn`. It begins with lapsed leases given back.
#[derive(Debug)]
pub(crate) struct Tx<'c> {
    conn: &'c Connection,
    pub(crate) sql: &'c Sql,
    names: &'c mut Names,
    ledger: Ledger,
    /// One moment for the whole transaction, taken when the write lock was held.
    pub(crate) now: Timestamp,
}

impl<'c> Tx<'c> {
    pub(crate) fn begin(
        conn: &'c Connection,
        sql: &'c Sql,
        names: &'c mut Names,
        now: Timestamp,
    ) -> Outcome<Self> {
        let (format, seq, token) = conn
            .prepare_cached(&sql.meta)?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        // Another process may have brought the tables up to date since we opened them.
        schema::accept(format)?;
        let (totals, earliest) = (HashMap::new(), HashMap::new());
        let ledger = Ledger { seq, token, changed: false, totals, earliest };
        let mut tx = Self { conn, sql, names, ledger, now };
        tx.reclaim()?;
        Ok(tx)
    }

    /// Writes what was kept in memory. The hints are to be sent after the commit.
    pub(crate) fn finish(self) -> Outcome<Vec<Wake>> {
        if self.ledger.changed {
            self.prepare(&self.sql.save_counters)?
                .execute(params![self.ledger.seq, self.ledger.token])?;
        }
        for (q, delta) in &self.ledger.totals {
            let counts = [
                delta.created,
                delta.done,
                delta.skipped,
                delta.cancelled,
                delta.replaced,
                delta.removed,
            ];
            let [created, done, skipped, cancelled, replaced, removed] =
                counts.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
            self.prepare(&self.sql.add_totals)?
                .execute(params![q, created, done, skipped, cancelled, replaced, removed])?;
        }
        self.wakes()
    }

    /// Queues whose earliest job may have been put there by this transaction. A later time than
    /// the earliest that was put there means that this job has left again, and others may be new.
    fn wakes(self) -> Outcome<Vec<Wake>> {
        let mut wakes = Vec::new();
        for (q, added) in &self.ledger.earliest {
            if let Some(due) = self.earliest_due(*q)?
                && due >= *added
                && let Some(name) = name_of(self.conn, self.sql, self.names, *q)?
            {
                wakes.push((name, due));
            }
        }
        Ok(wakes)
    }

    pub(crate) fn prepare(&self, sql: &str) -> rusqlite::Result<CachedStatement<'c>> {
        self.conn.prepare_cached(sql)
    }

    pub(crate) fn totals(&mut self, q: i64) -> &mut Totals {
        self.ledger.totals.entry(q).or_default()
    }

    /// The number that the next job will have; [`Self::take_seq`] uses it up.
    pub(crate) fn next_seq(&self) -> i64 {
        self.ledger.seq + 1
    }

    pub(crate) fn take_seq(&mut self) {
        self.ledger.seq += 1;
        self.ledger.changed = true;
    }

    /// The largest number that a job has had.
    pub(crate) fn last_seq(&self) -> i64 {
        self.ledger.seq
    }

    /// A token larger than every earlier one of this store.
    pub(crate) fn next_token(&mut self) -> i64 {
        self.ledger.token += 1;
        self.ledger.changed = true;
        self.ledger.token
    }

    /// The number of a queue, if the store has seen it.
    pub(crate) fn find_queue(&mut self, name: &QueueName) -> Outcome<Option<i64>> {
        if let Some(q) = self.names.numbers.get(name) {
            return Ok(Some(*q));
        }
        let q = self
            .prepare(&self.sql.find_queue)?
            .query_row([name.as_str()], |row| row.get(0))
            .optional()?;
        if let Some(q) = q {
            self.names.learn(name, q);
        }
        Ok(q)
    }

    /// The number of a queue, which is known from now on.
    pub(crate) fn queue(&mut self, name: &QueueName) -> Outcome<i64> {
        if let Some(q) = self.find_queue(name)? {
            return Ok(q);
        }
        let q = self.prepare(&self.sql.add_queue)?.query_row([name.as_str()], |row| row.get(0))?;
        self.names.learn(name, q);
        Ok(q)
    }

    /// Puts a job among those that wait.
    pub(crate) fn wait(&mut self, q: i64, at: Timestamp, seq: i64) -> Outcome<()> {
        self.prepare(&self.sql.add_due)?.execute([q, at.as_millis(), seq])?;
        let earliest = self.ledger.earliest.entry(q).or_insert(at);
        *earliest = at.min(*earliest);
        Ok(())
    }

    /// Takes a job from among those that wait; `false` if it is leased instead.
    pub(crate) fn unwait(&self, q: i64, at: i64, seq: i64) -> Outcome<bool> {
        Ok(self.prepare(&self.sql.remove_due)?.execute([q, at, seq])? == 1)
    }

    /// When the first job of a queue is due.
    pub(crate) fn earliest_due(&self, q: i64) -> Outcome<Option<Timestamp>> {
        let at =
            self.prepare(&self.sql.earliest_due)?.query_row([q], |row| row.get(0)).optional()?;
        Ok(at.map(Timestamp::from_millis))
    }

    /// Makes jobs whose lease has ended due again, at their old time.
    fn reclaim(&mut self) -> Outcome<()> {
        let lapsed: Vec<(i64, i64)> = self
            .prepare(&self.sql.lapsed_leases)?
            .query_map([self.now.as_millis()], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        for (seq, q) in lapsed {
            self.prepare(&self.sql.remove_lease)?.execute([seq])?;
            self.hand_back(q, seq, 1)?;
        }
        Ok(())
    }

    /// Makes a job whose lease is gone due again at its old time. The delivery counts.
    pub(crate) fn hand_back(&mut self, q: i64, seq: i64, losses: i64) -> Outcome<()> {
        let due = self
            .prepare(&self.sql.hand_back_job)?
            .query_row([seq, losses], |row| row.get(0))
            .map(Timestamp::from_millis)?;
        self.wait(q, due, seq)
    }
}

/// The name of a queue. `None` if it is none or the queue is not there, for which nobody listens.
fn name_of(conn: &Connection, sql: &Sql, names: &mut Names, q: i64) -> Outcome<Option<QueueName>> {
    if let Some(name) = names.names.get(&q) {
        return Ok(Some(name.clone()));
    }
    let mut statement = conn.prepare_cached(&sql.name_queue)?;
    let name = statement.query_row([q], |row| Ok(row::queue_name(row.get_ref(0)?).ok()));
    let name = name.optional()?.flatten();
    if let Some(name) = &name {
        names.learn(name, q);
    }
    Ok(name)
}
