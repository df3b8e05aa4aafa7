//! The SQL statements that are run more than once. Their parameters are documented where the number
//! alone does not show them; `{p}` stands for the table prefix, `q` is a queue id, and all times
//! are Unix milliseconds.

use crate::listings::Listings;

/// Columns of a job, in the order in which `row.rs` reads them.
macro_rules! columns {
    () => {
        "id, key, due, coalesce(first_due, due), created, attempts, deliveries, losses, \
        max_attempts, headers, payload"
    };
}

/// Selects the live jobs that neither wait nor are leased.
macro_rules! where_stuck {
    () => {
        "WHERE seq NOT IN (SELECT seq FROM {p}due UNION ALL SELECT seq FROM {p}lease)"
    };
}

macro_rules! statements {
    ($($(#[doc = $doc:literal])* $name:ident = $text:expr;)*) => {
        /// SQL statements with the table prefix filled in.
        #[derive(Debug)]
        pub(crate) struct Statements {
            $($(#[doc = $doc])* pub(crate) $name: String,)*
            /// The statements of `browse`.
            pub(crate) listings: Listings,
        }

        impl Statements {
            pub(crate) fn new(prefix: &str) -> Self {
                let listings = Listings::new(prefix);
                Self { $($name: $text.replace("{p}", prefix),)* listings }
            }

            #[cfg(test)]
            fn all(&self) -> Vec<(&'static str, &str)> {
                vec![$((stringify!($name), self.$name.as_str()),)*]
            }
        }
    };
}

statements! {
    // The store itself.
    /// What a write transaction begins with.
    counters = "SELECT min_writer, seq, token, granted FROM {p}meta";
    minimums = "SELECT min_reader, min_writer FROM {p}meta";
    claim_limits = "SELECT min_writer, granted FROM {p}meta";
    store_id = "SELECT store FROM {p}meta";
    /// Changes nothing.
    take_write_lock = "DELETE FROM {p}meta WHERE 0";
    save_counters = "UPDATE {p}meta SET seq = ?1, token = ?2, granted = ?3";

    // Queues.
    find_queue = "SELECT q FROM {p}queue WHERE name = ?1";
    name_queue = "SELECT name FROM {p}queue WHERE q = ?1";
    add_queue = "INSERT INTO {p}queue (name) VALUES (?1) RETURNING q";
    is_paused = "SELECT 1 FROM {p}queue WHERE q = ?1 AND paused";
    pause_queue = "UPDATE {p}queue SET paused = ?2 WHERE q = ?1 AND paused <> ?2";
    add_totals = "UPDATE {p}queue SET created = created + ?2, done = done + ?3, \
        skipped = skipped + ?4, cancelled = cancelled + ?5, replaced = replaced + ?6, \
        removed = removed + ?7 WHERE q = ?1";
    queue_row = "SELECT q, paused, created, done, skipped, cancelled, replaced, removed \
        FROM {p}queue WHERE name = ?1";
    queue_names = "SELECT name, q FROM {p}queue ORDER BY name";
    newest_queue = "SELECT q, name FROM {p}queue ORDER BY q DESC LIMIT 1";
    queue_by_id = "SELECT q, name FROM {p}queue WHERE q = ?1";
    queues_after = "SELECT q, name FROM {p}queue WHERE q > ?1";

    // Live jobs.
    /// One row of plain values: for an INSERT … SELECT that a constraint can abort, SQLite keeps a
    /// statement journal, which costs a quarter of the throughput.
    add_job = "INSERT INTO {p}job (seq, id, q, key, due, created, max_attempts, headers, payload) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO NOTHING";
    job_by_id = "SELECT seq, id, due, q FROM {p}job WHERE id = ?1";
    job_by_key = "SELECT seq, id, due, q FROM {p}job WHERE q = ?1 AND key = ?2";
    job_due = "SELECT due FROM {p}job WHERE seq = ?1";
    reschedule_job = "UPDATE {p}job SET due = ?2, first_due = NULL WHERE seq = ?1";
    /// After a retry or snooze: counts the delivery and, if `?3` is 1, the attempt. Keeps the first
    /// due time, and resets the consecutive losses.
    requeue_job = "UPDATE {p}job SET due = ?2, first_due = coalesce(first_due, due), \
        attempts = attempts + ?3, deliveries = deliveries + 1, losses = 0 WHERE seq = ?1";
    /// After a release or a lapse: counts the delivery and adds `?2` losses; the due time stays.
    release_job = "UPDATE {p}job SET deliveries = deliveries + 1, losses = losses + ?2 \
        WHERE seq = ?1 RETURNING due";
    /// After a next step: counts the delivery. Another payload, and no failed attempts and losses.
    again_job = "UPDATE {p}job SET due = ?2, first_due = NULL, payload = ?3, attempts = 0, \
        losses = 0, deliveries = deliveries + 1 WHERE seq = ?1";
    detach_job = "UPDATE {p}job SET key = NULL WHERE seq = ?1";
    remove_job = "DELETE FROM {p}job WHERE seq = ?1";

    // Waiting jobs.
    add_due = "INSERT INTO {p}due (q, at, seq) VALUES (?1, ?2, ?3)";
    remove_due = "DELETE FROM {p}due WHERE q = ?1 AND at = ?2 AND seq = ?3";
    /// The entries of a job at whatever time.
    remove_due_of_job = "DELETE FROM {p}due WHERE q = ?1 AND seq = ?2";
    is_due = "SELECT 1 FROM {p}due WHERE q = ?1 AND at = ?2 AND seq = ?3";
    earliest_due = "SELECT at FROM {p}due WHERE q = ?1 ORDER BY at, seq LIMIT 1";
    /// When the first job of a queue is due, unless the queue is paused.
    first_waiting = "SELECT at FROM {p}due WHERE q = ?1 \
        AND NOT EXISTS (SELECT 1 FROM {p}queue WHERE q = ?1 AND paused) \
        ORDER BY at, seq LIMIT 1";
    /// The first queue from id `?1` on that has waiting jobs, when the first is due, and whether the
    /// queue is paused.
    next_waiting = "SELECT due.q, due.at, queue.paused FROM {p}due AS due \
        CROSS JOIN {p}queue AS queue ON queue.q = due.q WHERE due.q >= ?1 \
        ORDER BY due.q, due.at, due.seq LIMIT 1";
    /// The `id` is null if the job row is missing.
    due_jobs = concat!(
        "SELECT ", columns!(), ", due.seq, due.at FROM {p}due AS due LEFT JOIN {p}job AS job \
        ON job.seq = due.seq WHERE due.q = ?1 AND due.at <= ?2 ORDER BY due.at, due.seq LIMIT ?3"
    );
    /// Removes the waiting jobs up to and including one with due time `?2` and `seq` `?3`.
    remove_due_until = "DELETE FROM {p}due WHERE q = ?1 AND (at, seq) <= (?2, ?3)";
    first_due_entries = "SELECT at, seq FROM {p}due WHERE q = ?1 ORDER BY at, seq LIMIT ?2";
    count_due = "SELECT count(*) FROM {p}due WHERE q = ?1 AND at <= ?2";
    count_later = "SELECT count(*) FROM {p}due WHERE q = ?1 AND at > ?2";

    count_between = "SELECT count(*) FROM {p}due WHERE q = ?1 AND at >= ?2 AND at < ?3";

    // Running jobs.
    /// A renewal changes `granted`, but not `since`.
    add_lease = "INSERT INTO {p}lease (seq, q, until, token, worker, granted, since) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)";
    lease_of_job = "SELECT job.seq, lease.q, lease.token FROM {p}job AS job \
        CROSS JOIN {p}lease AS lease ON lease.seq = job.seq WHERE job.id = ?1 \
        AND lease.until > ?2";
    is_leased = "SELECT 1 FROM {p}lease WHERE seq = ?1";
    extend_lease = "UPDATE {p}lease SET until = ?2, granted = ?3 WHERE seq = ?1";
    /// Lets leases whose grant lies after `?1` begin at `?1`.
    shorten_leases = "UPDATE {p}lease SET until = ?1 + until - granted, granted = ?1 \
        WHERE granted > ?1";
    remove_lease = "DELETE FROM {p}lease WHERE seq = ?1";
    /// Ends a lease if it is still held, and returns the job's `seq`. One statement, since it runs
    /// once per job.
    end_lease = "DELETE FROM {p}lease WHERE token = ?3 \
        AND seq = (SELECT seq FROM {p}job WHERE id = ?1 AND q = ?2) AND until > ?4 \
        RETURNING seq, worker, since";
    lapsed_leases = "SELECT seq, q, worker, since FROM {p}lease WHERE until <= ?1";
    /// The jobs of lapsed leases, which wait again at their old due time.
    lapsed_jobs = "SELECT lease.q, job.due FROM {p}lease AS lease CROSS JOIN {p}job AS job \
        ON job.seq = lease.seq WHERE lease.until <= ?1";
    lease_ends = "SELECT until, q FROM {p}lease WHERE until > ?1 ORDER BY until";
    /// The end of a lease, what it is after `shorten_leases`, the holder, and the start.
    lease_of = "SELECT until, min(until, ?2 + until - granted), worker, since FROM {p}lease \
        WHERE seq = ?1";
    count_leases = "SELECT q, count(*) FROM {p}lease WHERE until > ?1 GROUP BY q";

    // Checks.
    /// Number of live jobs, of waiting jobs and of leases: without orphans and stuck jobs the first is the
    /// sum of the others.
    count_all = "SELECT (SELECT count(*) FROM {p}job), (SELECT count(*) FROM {p}due), \
        (SELECT count(*) FROM {p}lease)";
    count_orphaned_due = "SELECT count(*) FROM {p}due AS due \
        WHERE NOT EXISTS (SELECT 1 FROM {p}job AS job WHERE job.seq = due.seq)";
    count_orphaned_leases = "SELECT count(*) FROM {p}lease AS lease \
        WHERE NOT EXISTS (SELECT 1 FROM {p}job AS job WHERE job.seq = lease.seq)";
    count_stuck_jobs = concat!("SELECT count(*) FROM {p}job ", where_stuck!());
    /// The job that was quarantined last, if that was after `?1`. Queue by queue, since the index of dead
    /// jobs is by queue and time. SQLite takes the `id` of the row with the maximum; HAVING leaves out the
    /// row of nulls that an aggregate without rows has.
    last_quarantined = "SELECT dead.id, max(dead.died) FROM {p}queue AS queue \
        JOIN {p}dead AS dead ON dead.q = queue.q AND dead.died > ?1 \
        WHERE dead.kind = 'quarantined' HAVING max(dead.died) IS NOT NULL";
    /// Puts the stuck jobs back into `due`. `check` shows it to operators; nothing runs it.
    free_stuck_jobs =
        concat!("INSERT INTO {p}due (q, at, seq) SELECT q, due, seq FROM {p}job ", where_stuck!());

    // Dead jobs.
    add_dead = "INSERT INTO {p}dead (seq, id, q, key, due, first_due, created, attempts, deliveries, \
        losses, max_attempts, died, kind, message, headers, payload) \
        SELECT seq, id, q, key, due, first_due, created, attempts + ?2, deliveries + ?3, losses, \
        max_attempts, ?4, ?5, ?6, headers, payload FROM {p}job WHERE seq = ?1";
    first_dead = "SELECT seq FROM {p}dead WHERE q = ?1 ORDER BY died, seq LIMIT ?2";
    dead_by_id = "SELECT seq, due, q FROM {p}dead WHERE id = ?1";
    /// Makes a dead job live again, unless another live job has its id or key.
    replay_job = "INSERT INTO {p}job (seq, id, q, key, due, created, attempts, deliveries, losses, \
        max_attempts, headers, payload) \
        SELECT seq, id, q, key, ?2, created, 0, deliveries, 0, max_attempts, headers, payload \
        FROM {p}dead WHERE seq = ?1 ON CONFLICT DO NOTHING";
    remove_dead = "DELETE FROM {p}dead WHERE seq = ?1";
    count_dead = "SELECT count(*) FROM {p}dead WHERE q = ?1";

    // Single jobs, with the columns of `listings.rs`.
    view_job = concat!("SELECT ", columns!(), ", job.seq, job.due, note.last_error \
        FROM {p}job AS job LEFT JOIN {p}note AS note ON note.seq = job.seq WHERE job.seq = ?1");
    view_dead = concat!("SELECT ", columns!(), ", dead.seq, dead.died, note.last_error, dead.kind, \
        dead.message FROM {p}dead AS dead LEFT JOIN {p}note AS note ON note.seq = dead.seq \
        WHERE dead.id = ?1 AND dead.q = ?2");
    view_ended = "SELECT id, key, due, coalesce(first_due, due), created, attempts, deliveries, \
        losses, max_attempts, NULL, x'', seq, at, last_error, ending, reason, worker, started \
        FROM {p}ended WHERE id = ?1 AND q = ?2";

    // Notes on jobs.
    note = "SELECT remember, started, worker, last_error FROM {p}note WHERE seq = ?1";
    note_remember = "INSERT OR REPLACE INTO {p}note (seq, remember) VALUES (?1, ?2)";
    /// Notes the last lease (`?2`, `?3`). A null error leaves the one before.
    note_run = "INSERT INTO {p}note (seq, started, worker, last_error) VALUES (?1, ?2, ?3, ?4) \
        ON CONFLICT (seq) DO UPDATE SET started = excluded.started, worker = excluded.worker, \
        last_error = coalesce(excluded.last_error, last_error)";
    clear_error = "UPDATE {p}note SET last_error = NULL WHERE seq = ?1";
    remove_note = "DELETE FROM {p}note WHERE seq = ?1";

    // Jobs that have ended. Nothing is inserted if the id has ended before. No constraint can fail
    // with these, so that SQLite keeps no statement journal.
    remember_job = "INSERT OR IGNORE INTO {p}ended (q, at, seq, id, key, due, first_due, created, \
        attempts, deliveries, losses, max_attempts, started, worker, last_error, ending, reason) \
        SELECT q, ?2, seq, id, key, due, first_due, created, attempts, deliveries + ?3, losses, \
        max_attempts, ?4, ?5, ?6, ?7, ?8 FROM {p}job WHERE seq = ?1";
    /// The reason is the text of the `DeadReason`.
    remember_dead = "INSERT OR IGNORE INTO {p}ended (q, at, seq, id, key, due, first_due, created, \
        attempts, deliveries, losses, max_attempts, started, worker, last_error, ending, reason) \
        SELECT q, ?2, seq, id, key, due, first_due, created, attempts, deliveries, losses, \
        max_attempts, ?3, ?4, ?5, ?6, kind || ': ' || message FROM {p}dead WHERE seq = ?1";
    /// Removes the earlier end of the id of a live or dead job.
    forget_ended = "DELETE FROM {p}ended WHERE id IN (SELECT id FROM {p}job WHERE seq = ?1 \
        UNION ALL SELECT id FROM {p}dead WHERE seq = ?1) RETURNING q";
    count_ended = "SELECT ended FROM {p}queue WHERE q = ?1";
    add_ended_count = "UPDATE {p}queue SET ended = ended + ?2 WHERE q = ?1";
    outdated_ended = "SELECT 1 FROM {p}ended WHERE q = ?1 AND at < ?2 LIMIT ?3";
    ended_at_offset = "SELECT at, seq FROM {p}ended WHERE q = ?1 ORDER BY at, seq \
        LIMIT 1 OFFSET ?2";
    remove_ended = "DELETE FROM {p}ended WHERE q = ?1 AND (at, seq) <= (?2, ?3)";

    // Pinned ids.
    pin_job = "INSERT INTO {p}pin (id, due, until) SELECT id, due, ?2 FROM {p}job WHERE seq = ?1 \
        ON CONFLICT (id) DO UPDATE SET due = excluded.due, until = excluded.until";
    pin_dead = "INSERT INTO {p}pin (id, due, until) SELECT id, due, ?2 FROM {p}dead WHERE seq = ?1 \
        ON CONFLICT (id) DO UPDATE SET due = excluded.due, until = excluded.until";
    /// The due time of the ended job whose id is pinned at `?2`, then the one in the history of queue
    /// `?3`, with its position. One statement, since it runs once per job.
    remembered = "SELECT due, NULL, NULL FROM {p}pin WHERE id = ?1 AND until > ?2 \
        UNION ALL SELECT due, at, seq FROM {p}ended WHERE id = ?1 AND q = ?3";
    remove_pins = "DELETE FROM {p}pin WHERE id IN \
        (SELECT id FROM {p}pin WHERE until <= ?1 ORDER BY until LIMIT ?2)";

    // Runners.
    runners = "SELECT name, info, at, until FROM {p}runner WHERE until > ?1 ORDER BY name";
    add_runner = "INSERT INTO {p}runner (name, info, at, until) VALUES (?1, ?2, ?3, ?4)";
    remove_runners = "DELETE FROM {p}runner WHERE until <= ?1 OR name = ?2";
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::schema;

    /// Statements that scan or sort a table which stays small: the `meta` row, queues, leases.
    const FULL_SCANS: [&str; 13] = [
        "counters",
        "minimums",
        "claim_limits",
        "store_id",
        "take_write_lock",
        "save_counters",
        "queue_names",
        "newest_queue",
        "count_leases",
        "shorten_leases",
        "runners",
        "remove_runners",
        "last_quarantined",
    ];

    /// Listings of leases, of which there are only as many as running handlers.
    const SCANNING_LISTINGS: [&str; 3] = ["running", "lapsed_scheduled", "lapsed_ready"];

    /// Statements of `check`, which an operator calls.
    const CHECKS: [&str; 5] = [
        "count_all",
        "count_orphaned_due",
        "count_orphaned_leases",
        "count_stuck_jobs",
        "free_stuck_jobs",
    ];

    #[test]
    fn no_statement_scans_or_sorts_a_table_that_grows() {
        let mut conn = Connection::open_in_memory().unwrap();
        schema::ensure(&mut conn, "dq_").unwrap();
        let statements = Statements::new("dq_");
        let listings = statements.listings.all().map(|(name, text)| (name, text.as_str()));
        for (name, text) in statements.all().into_iter().chain(listings) {
            let mut plan = conn.prepare(&format!("EXPLAIN QUERY PLAN {text}")).unwrap();
            let unbound = vec![rusqlite::types::Null; plan.parameter_count()];
            let steps: Vec<String> = plan
                .query_map(rusqlite::params_from_iter(unbound), |row| row.get(3))
                .unwrap()
                .collect::<rusqlite::Result<_>>()
                .unwrap();
            let scans =
                steps.iter().any(|step| step.starts_with("SCAN") && *step != "SCAN CONSTANT ROW");
            let sorts = steps.iter().any(|step| step.contains("TEMP B-TREE"));
            let may_scan = FULL_SCANS.contains(&name)
                || CHECKS.contains(&name)
                || SCANNING_LISTINGS.contains(&name);
            assert!(!(scans || sorts) || may_scan, "{name}: {steps:?}");
        }
    }
}
