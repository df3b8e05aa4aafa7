//! The one thread that writes: group commit.
//!
//! While a transaction is being synced to the disk, calls gather in the channel; the next
//! transaction takes all of them. There is no timer: one caller pays one sync, many share it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::connection;
use crate::error::{Failure, Outcome};
use crate::maintenance;
use crate::shared::{Shared, StoreId};
use crate::submit::{Answer, Message, Ticket, Weight};
use crate::tx::{Names, Tx, Wake};
use crate::wake::{LOOK_EVERY, Neighbours};

/// A transaction takes no more operations once it has this many, or this many bytes of payloads.
const GROUP_ITEMS: usize = 512;
const GROUP_BYTES: usize = 4 * 1024 * 1024;

/// How long the writer pauses between two transactions while others want to write too. SQLite's
/// waiters sleep and look; without a pause they would never find the lock free.
const PAUSE: Duration = Duration::from_millis(1);

/// How long after their last commit others are expected to come again.
const NEIGHBOURLY: Duration = Duration::from_secs(10);

/// How long nothing must have been written before maintenance.
const REST: Duration = Duration::from_millis(200);

/// A connection and what is known of its file.
struct Session {
    conn: Connection,
    neighbours: Neighbours,
    store: StoreId,
}

impl Session {
    fn open(shared: &Shared) -> Outcome<Self> {
        let conn = connection::open_writer(&shared.config)?;
        let neighbours = Neighbours::meet(&conn)?;
        let store = conn.query_row(&shared.sql.meta, [], |row| row.get(3))?;
        Ok(Self { conn, neighbours, store })
    }
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    messages: Receiver<Message>,
    /// `None` after a failed commit, until the file could be opened anew.
    session: Option<Session>,
    names: Names,
    waiting: VecDeque<Ticket>,
    closing: Option<oneshot::Sender<()>>,
    neighbour_seen: Option<Instant>,
    /// Whether others may have committed what listeners have not been told. Kept until they have
    /// been: SQLite tells of a commit once, and whoever asked may fail for another reason.
    untold: bool,
    last_write: Instant,
    /// Whether maintenance may have something to do.
    untidy: bool,
}

impl Writer {
    /// Opens the file and then works until it is told to close or nobody is left to tell it.
    pub(crate) fn run(
        shared: Arc<Shared>,
        messages: Receiver<Message>,
        opened: oneshot::Sender<Outcome<StoreId>>,
    ) {
        let session = match Session::open(&shared) {
            Ok(session) => session,
            Err(failure) => {
                // Whoever opened the store has gone: then nobody misses it.
                let _ = opened.send(Err(failure));
                return;
            }
        };
        if opened.send(Ok(session.store)).is_err() {
            return;
        }
        let writer = Self {
            shared,
            messages,
            session: Some(session),
            names: Names::default(),
            waiting: VecDeque::new(),
            closing: None,
            neighbour_seen: None,
            untold: false,
            last_write: Instant::now(),
            untidy: true,
        };
        writer.work();
    }

    fn work(mut self) {
        while self.wait() {
            self.gather();
            while !self.waiting.is_empty() {
                self.transact();
            }
            if self.closing.is_some() {
                break;
            }
        }
        self.close();
    }

    /// Waits for work, looking around now and then if anybody profits from it; `false` when all
    /// callers are gone.
    fn wait(&mut self) -> bool {
        loop {
            let message = if self.untidy || self.shared.switchboard.is_used() {
                self.messages.recv_timeout(LOOK_EVERY)
            } else {
                self.messages.recv().map_err(RecvTimeoutError::from)
            };
            match message {
                Ok(message) => {
                    self.take(message);
                    return true;
                }
                Err(RecvTimeoutError::Timeout) => self.look_around(),
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Work(ticket) => self.waiting.push_back(ticket),
            Message::Look => {}
            Message::Close(done) => self.closing = Some(done),
        }
    }

    /// Takes what has gathered in the channel, up to one transaction's worth.
    fn gather(&mut self) {
        let mut sum = Weight::default();
        for ticket in &self.waiting {
            sum.add(ticket.weight);
        }
        while !fills_a_transaction(sum) && self.closing.is_none() {
            let Ok(message) = self.messages.try_recv() else {
                break;
            };
            if let Message::Work(ticket) = &message {
                sum.add(ticket.weight);
            }
            self.take(message);
        }
        // From here on they no longer count against the channel's bound.
        for ticket in &mut self.waiting {
            ticket.permit = None;
        }
    }

    /// One transaction over the work in hand. What is left after a failure has its turn in the
    /// next.
    fn transact(&mut self) {
        let mut answers = Vec::with_capacity(self.waiting.len());
        let outcome = self.attempt(&mut answers);
        self.last_write = Instant::now();
        self.untidy = true;
        match outcome {
            Ok(wakes) => {
                self.shared.switchboard.send(wakes);
                answers.into_iter().for_each(|answer| answer(None));
            }
            Err(failure) => {
                self.names.forget();
                tracing::warn!(%failure, calls = answers.len(), "a transaction failed");
                answers.into_iter().for_each(|answer| answer(Some(&failure)));
            }
        }
        self.tell_of_neighbours();
        self.make_way();
    }

    fn attempt(&mut self, answers: &mut Vec<Answer>) -> Outcome<Vec<Wake>> {
        let done = self.begin().and_then(|()| self.fill(answers));
        match done {
            Ok(wakes) => self.commit().map(|()| wakes),
            Err(failure) => {
                self.roll_back();
                if answers.is_empty() {
                    answers.extend(self.waiting.drain(..).map(|ticket| ticket.task.refuse()));
                }
                Err(failure)
            }
        }
    }

    fn fill(&mut self, answers: &mut Vec<Answer>) -> Outcome<Vec<Wake>> {
        let conn = &self.session.as_ref().expect("a transaction was begun on it").conn;
        let now = self.shared.clock.now();
        let tx = Tx::begin(conn, &self.shared.sql, &mut self.names, now)?;
        work_off(tx, &mut self.waiting, answers)
    }

    fn commit(&mut self) -> Outcome<()> {
        let conn = &self.session.as_ref().expect("a transaction was begun on it").conn;
        execute(conn, "COMMIT").map_err(|error| {
            // After a failed sync the pages in memory may not be those on the disk: never go on
            // with this connection.
            self.session = None;
            Failure::from(error).of_commit()
        })
    }

    fn roll_back(&mut self) {
        let Some(Session { conn, .. }) = &self.session else {
            return;
        };
        // No transaction is open if it never began, or if SQLite has rolled it back by itself.
        if !conn.is_autocommit() && conn.execute_batch("ROLLBACK").is_err() {
            self.session = None;
        }
    }

    /// Opens a transaction, and the file first if need be.
    fn begin(&mut self) -> Outcome<()> {
        self.reopen()?;
        let conn = &self.session.as_ref().expect("it was just opened").conn;
        execute(conn, "BEGIN IMMEDIATE")?;
        self.look_for_neighbours();
        Ok(())
    }

    /// Opens the file again if it was given up.
    fn reopen(&mut self) -> Outcome<()> {
        if self.session.is_none() {
            self.session = Some(Session::open(&self.shared)?);
            // Of what was committed meanwhile the new connection knows nothing.
            self.untold = true;
        }
        Ok(())
    }

    fn look_for_neighbours(&mut self) {
        let Some(session) = &mut self.session else {
            return;
        };
        // A look that fails is made up for by the next one.
        if session.neighbours.have_written(&session.conn).unwrap_or(false) {
            self.neighbour_seen = Some(Instant::now());
            self.untold = true;
        }
    }

    fn tell_of_neighbours(&mut self) {
        let Some(session) = self.session.as_ref().filter(|_| self.untold) else {
            return;
        };
        match self.shared.switchboard.send_all(&session.conn, &self.shared.sql) {
            Ok(()) => self.untold = false,
            Err(failure) => {
                tracing::debug!(%failure, "listeners were not told of a commit of others");
            }
        }
    }

    /// Lets other processes write, if there are any and more work is waiting here.
    fn make_way(&mut self) {
        let neighbourly = self.neighbour_seen.is_some_and(|seen| seen.elapsed() < NEIGHBOURLY);
        if !neighbourly {
            return;
        }
        if let Ok(message) = self.messages.try_recv() {
            self.take(message);
            std::thread::sleep(PAUSE);
            self.gather();
        }
    }

    /// What is done while there is no work.
    fn look_around(&mut self) {
        if self.reopen().is_err() {
            // Whoever calls next is told why. Until then only listeners profit from trying.
            self.untidy = false;
            return;
        }
        self.look_for_neighbours();
        self.tell_of_neighbours();
        if self.untidy && self.last_write.elapsed() >= REST {
            self.tidy();
        }
    }

    fn tidy(&mut self) {
        let Some(session) = &self.session else {
            return;
        };
        // Busy or full: no harm, the next write makes the file untidy again.
        self.untidy = maintenance::turn(&session.conn).unwrap_or(false);
    }

    fn close(mut self) {
        if let Some(Session { conn, .. }) = self.session.take() {
            // With others at work the log stays; they or the next to open will copy it.
            let _ = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
            drop(conn);
        }
        if let Some(done) = self.closing.take() {
            // The caller may have stopped waiting.
            let _ = done.send(());
        }
    }
}

/// Runs the work in hand inside one transaction, up to the first failure: a full disk makes SQLite
/// undo the whole transaction, so the rest has its turn in the next. Work that fills a transaction
/// has one of its own, since it is what most likely does not fit on the disk.
fn work_off(
    mut tx: Tx<'_>,
    waiting: &mut VecDeque<Ticket>,
    answers: &mut Vec<Answer>,
) -> Outcome<Vec<Wake>> {
    while let Some(ticket) = waiting.pop_front() {
        let alone = fills_a_transaction(ticket.weight);
        if alone && !answers.is_empty() {
            waiting.push_front(ticket);
            break;
        }
        let (answer, failure) = ticket.task.run(&mut tx);
        answers.push(answer);
        if let Some(failure) = failure {
            // Whose call it was has an answer of its own.
            return Err(failure.of_another_call());
        }
        if alone {
            break;
        }
    }
    tx.finish()
}

const fn fills_a_transaction(weight: Weight) -> bool {
    weight.items >= GROUP_ITEMS || weight.bytes >= GROUP_BYTES
}

fn execute(conn: &Connection, sql: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(sql)?.execute([]).map(drop)
}
