//! SQL statements that run more than once. `{p}` is the table prefix, `q` a queue id; times are
//! Unix milliseconds.

/// In the order in which `row.rs` reads them.
macro_rules! columns {
    () => {
        "id, key, due, coalesce(first_due, due), created, attempts, deliveries, losses, \
        max_attempts, headers, payload"
    };
}

/// Adds a job to the history. An id that has already ended is not inserted again. No constraint can
/// fail here, so SQLite keeps no statement journal.
macro_rules! remember {
    ($reason_from:literal) => {
        concat!(
            "INSERT OR IGNORE INTO {p}ended (q, at, seq, id, key, due, first_due, created, \
            attempts, deliveries, losses, max_attempts, started, worker, last_error, ending, reason) \
            SELECT q, ?2, seq, id, key, due, first_due, created, attempts, deliveries + ?3, losses, \
            max_attempts, ?4, ?5, ?6, ?7, ",
            $reason_from,
            " WHERE seq = ?1"
        )
    };
}

macro_rules! pin {
    ($table:literal) => {
        concat!(
            "INSERT INTO {p}pin (id, due, until) SELECT id, due, ?2 FROM ",
            $table,
            " WHERE seq = ?1 \
            ON CONFLICT (id) DO UPDATE SET due = excluded.due, until = excluded.until"
        )
    };
}

macro_rules! statements {
    ($($(#[doc = $doc:literal])* $name:ident = $text:expr;)*) => {
        #[derive(Debug)]
        pub(crate) struct Statements {
            $($(#[doc = $doc])* pub(crate) $name: String,)*
            pub(crate) prefix: String,
        }

        impl Statements {
            pub(crate) fn new(prefix: &str) -> Self {
                Self { $($name: $text.replace("{p}", prefix),)* prefix: prefix.to_owned() }
            }

            #[cfg(test)]
            fn all(&self) -> Vec<(String, String)> {
                vec![$((stringify!($name).to_owned(), self.$name.clone()),)*]
            }
        }
    };
}

statements! {
    // The store itself.
    counters = "SELECT min_writer, seq, token, granted FROM {p}meta";
    minimums = "SELECT min_reader, min_writer FROM {p}meta";
    claim_limits = "SELECT min_writer, granted FROM {p}meta";
    store_id = "SELECT store FROM {p}meta";
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
    newest_queue = "SELECT name, q FROM {p}queue ORDER BY q DESC LIMIT 1";

    // Limits.
    gate = "SELECT declared, overriding, used, closed_until FROM {p}flow WHERE q = ?1";
    save_gate = "INSERT INTO {p}flow (q, declared, overriding, used, closed_until) \
        VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (q) DO UPDATE SET declared = excluded.declared, \
        overriding = excluded.overriding, used = excluded.used, \
        closed_until = excluded.closed_until";
    require_flow = "UPDATE {p}meta SET min_writer = max(min_writer, 2)";
    count_leases_of = "SELECT count(*) FROM {p}lease WHERE q = ?1 AND until > ?2";

    // Live jobs.
    /// One row of plain values: for an INSERT … SELECT that a constraint can abort, SQLite keeps a
    /// statement journal, which costs a quarter of the throughput.
    add_job = "INSERT INTO {p}job (seq, id, q, key, due, created, max_attempts, headers, payload) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO NOTHING";
    job_by_id = "SELECT seq, id, due, q, headers FROM {p}job WHERE id = ?1";
    job_by_key = "SELECT seq, id, due, q, headers FROM {p}job WHERE q = ?1 AND key = ?2";
    reschedule_job = "UPDATE {p}job SET due = ?2, first_due = NULL WHERE seq = ?1";
    /// After a retry or snooze; `?3` is 1 if the attempt counts. Keeps the first due time.
    requeue_job = "UPDATE {p}job SET due = ?2, first_due = coalesce(first_due, due), \
        attempts = attempts + ?3, deliveries = deliveries + 1, losses = 0 WHERE seq = ?1";
    /// After a release or an expired lease.
    release_job = "UPDATE {p}job SET deliveries = deliveries + ?2, losses = losses + ?3 \
        WHERE seq = ?1 RETURNING due";
    /// After a next step.
    again_job = "UPDATE {p}job SET due = ?2, first_due = NULL, payload = ?3, attempts = 0, \
        losses = 0, deliveries = deliveries + 1 WHERE seq = ?1";
    detach_job = "UPDATE {p}job SET key = NULL WHERE seq = ?1";
    remove_job = "DELETE FROM {p}job WHERE seq = ?1";

    // Waiting jobs.
    add_due = "INSERT INTO {p}due (q, at, seq) VALUES (?1, ?2, ?3)";
    remove_due = "DELETE FROM {p}due WHERE q = ?1 AND at = ?2 AND seq = ?3";
    /// At any due time.
    remove_due_of_job = "DELETE FROM {p}due WHERE q = ?1 AND seq = ?2";
    earliest_due = "SELECT at FROM {p}due WHERE q = ?1 ORDER BY at, seq LIMIT 1";
    first_waiting = "SELECT at FROM {p}due WHERE q = ?1 \
        AND NOT EXISTS (SELECT 1 FROM {p}queue WHERE q = ?1 AND paused) \
        ORDER BY at, seq LIMIT 1";
    /// First queue from id `?1` with waiting jobs.
    next_waiting = "SELECT due.q, due.at, queue.paused FROM {p}due AS due \
        CROSS JOIN {p}queue AS queue ON queue.q = due.q WHERE due.q >= ?1 \
        ORDER BY due.q, due.at, due.seq LIMIT 1";
    /// `id` is null if the job row is missing.
    due_jobs = concat!(
        "SELECT ", columns!(), ", due.seq, due.at FROM {p}due AS due LEFT JOIN {p}job AS job \
        ON job.seq = due.seq WHERE due.q = ?1 AND due.at <= ?2 ORDER BY due.at, due.seq LIMIT ?3"
    );
    remove_due_until = "DELETE FROM {p}due WHERE q = ?1 AND (at, seq) <= (?2, ?3)";
    first_due_entries = "SELECT at, seq FROM {p}due WHERE q = ?1 ORDER BY at, seq LIMIT ?2";
    count_due = "SELECT count(*) FROM {p}due WHERE q = ?1 AND at >= ?2 AND at < ?3";

    // Due jobs of full groups.
    park = "INSERT OR REPLACE INTO {p}parked (q, grp, at, seq) VALUES (?1, ?2, ?3, ?4)";
    first_parked_of_group = "SELECT at, seq FROM {p}parked WHERE q = ?1 AND grp = ?2 \
        ORDER BY at, seq LIMIT 1";
    /// Another program may have returned some.
    return_parked = "INSERT OR IGNORE INTO {p}due (q, at, seq) SELECT q, at, seq FROM {p}parked \
        WHERE q = ?1";
    remove_parked = "DELETE FROM {p}parked WHERE q = ?1 AND grp = ?2 AND at = ?3 AND seq = ?4";
    /// In any group and at any due time.
    remove_parked_job = "DELETE FROM {p}parked WHERE q = ?1 AND seq = ?2";
    remove_all_parked = "DELETE FROM {p}parked WHERE q = ?1";
    first_parked = "SELECT at FROM {p}parked WHERE q = ?1 ORDER BY at LIMIT 1";
    count_parked = "SELECT count(*) FROM {p}parked WHERE q = ?1 AND at >= ?2 AND at < ?3";
    count_leases_of_group = "SELECT count(*) FROM {p}lease \
        WHERE q = ?1 AND grp = ?2 AND until > ?3";

    // Running jobs.
    /// A renewal changes `granted`, but not `since`.
    add_lease = "INSERT INTO {p}lease (seq, q, until, token, worker, granted, since, grp) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7)";
    lease_of_job = "SELECT job.seq, lease.q, lease.token FROM {p}job AS job \
        CROSS JOIN {p}lease AS lease ON lease.seq = job.seq WHERE job.id = ?1 \
        AND lease.until > ?2";
    is_leased = "SELECT 1 FROM {p}lease WHERE seq = ?1";
    extend_lease = "UPDATE {p}lease SET until = ?2, granted = ?3 WHERE seq = ?1";
    /// Leases granted after `?1` begin at `?1`.
    shorten_leases = "UPDATE {p}lease SET until = ?1 + until - granted, granted = ?1 \
        WHERE granted > ?1";
    remove_lease = "DELETE FROM {p}lease WHERE seq = ?1";
    /// One statement, because it runs once per job.
    end_lease = "DELETE FROM {p}lease WHERE token = ?3 \
        AND seq = (SELECT seq FROM {p}job WHERE id = ?1 AND q = ?2) AND until > ?4 \
        RETURNING seq, worker, since, grp";
    expired_leases = "SELECT seq, q, worker, since, grp FROM {p}lease WHERE until <= ?1";
    /// They wait again at their old due time.
    expired_jobs = "SELECT lease.q, job.due FROM {p}lease AS lease CROSS JOIN {p}job AS job \
        ON job.seq = lease.seq WHERE lease.until <= ?1";
    lease_ends = "SELECT until, q FROM {p}lease WHERE until > ?1 ORDER BY until";
    count_leases = "SELECT q, count(*) FROM {p}lease WHERE until > ?1 GROUP BY q";

    // Checks.
    /// Queue by queue, because the index on dead jobs is by queue and time. SQLite returns the `id`
    /// from the row with the maximum; HAVING drops the row of nulls that an aggregate without rows
    /// returns.
    last_quarantined = "SELECT dead.id, max(dead.died) FROM {p}queue AS queue \
        JOIN {p}dead AS dead ON dead.q = queue.q AND dead.died > ?1 \
        WHERE dead.kind = 'quarantined' HAVING max(dead.died) IS NOT NULL";

    // Dead jobs.
    add_dead = "INSERT INTO {p}dead (seq, id, q, key, due, first_due, created, attempts, deliveries, \
        losses, max_attempts, died, kind, message, headers, payload) \
        SELECT seq, id, q, key, due, first_due, created, attempts + ?2, deliveries + ?3, losses, \
        max_attempts, ?4, ?5, ?6, headers, payload FROM {p}job WHERE seq = ?1";
    first_dead = "SELECT seq FROM {p}dead WHERE q = ?1 ORDER BY died, seq LIMIT ?2";
    dead_by_id = "SELECT seq, due, q FROM {p}dead WHERE id = ?1";
    replay_job = "INSERT INTO {p}job (seq, id, q, key, due, created, attempts, deliveries, losses, \
        max_attempts, headers, payload) \
        SELECT seq, id, q, key, ?2, created, 0, deliveries, 0, max_attempts, headers, payload \
        FROM {p}dead WHERE seq = ?1 ON CONFLICT DO NOTHING";
    remove_dead = "DELETE FROM {p}dead WHERE seq = ?1";
    count_dead = "SELECT count(*) FROM {p}dead WHERE q = ?1";

    // Single jobs, with the columns of `listings.rs`. `?2` is the time.
    view_job = concat!("SELECT ", columns!(), ", job.seq, job.due, note.last_error, \
        min(lease.until, ?2 + lease.until - lease.granted), lease.worker, lease.since \
        FROM {p}job AS job LEFT JOIN {p}note AS note ON note.seq = job.seq \
        LEFT JOIN {p}lease AS lease ON lease.seq = job.seq WHERE job.seq = ?1");
    view_dead = concat!("SELECT ", columns!(), ", dead.seq, dead.died, note.last_error, dead.kind, \
        dead.message FROM {p}dead AS dead LEFT JOIN {p}note AS note ON note.seq = dead.seq \
        WHERE dead.id = ?1 AND dead.q = ?2");
    view_ended = "SELECT id, key, due, coalesce(first_due, due), created, attempts, deliveries, \
        losses, max_attempts, NULL, x'', seq, at, last_error, ending, reason, worker, started \
        FROM {p}ended WHERE id = ?1 AND q = ?2";

    // Notes on jobs.
    note = "SELECT remember, started, worker, last_error FROM {p}note WHERE seq = ?1";
    note_remember = "INSERT OR REPLACE INTO {p}note (seq, remember) VALUES (?1, ?2)";
    /// `?2` and `?3` describe the last lease. A null error keeps the earlier one.
    note_run = "INSERT INTO {p}note (seq, started, worker, last_error) VALUES (?1, ?2, ?3, ?4) \
        ON CONFLICT (seq) DO UPDATE SET started = excluded.started, worker = excluded.worker, \
        last_error = coalesce(excluded.last_error, last_error)";
    clear_error = "UPDATE {p}note SET last_error = NULL WHERE seq = ?1";
    remove_note = "DELETE FROM {p}note WHERE seq = ?1";

    remember_job = remember!("?8 FROM {p}job");
    /// `reason` is the `DeadReason` as text.
    remember_dead = remember!("coalesce(?8, kind || ': ' || message) FROM {p}dead");
    forget_ended = "DELETE FROM {p}ended WHERE id IN (SELECT id FROM {p}job WHERE seq = ?1 \
        UNION ALL SELECT id FROM {p}dead WHERE seq = ?1) RETURNING q";
    count_ended = "SELECT ended FROM {p}queue WHERE q = ?1";
    add_ended_count = "UPDATE {p}queue SET ended = ended + ?2 WHERE q = ?1";
    outdated_ended = "SELECT 1 FROM {p}ended WHERE q = ?1 AND at < ?2 LIMIT ?3";
    ended_at_offset = "SELECT at, seq FROM {p}ended WHERE q = ?1 ORDER BY at, seq \
        LIMIT 1 OFFSET ?2";
    remove_ended = "DELETE FROM {p}ended WHERE q = ?1 AND (at, seq) <= (?2, ?3)";

    // Pinned ids.
    pin_job = pin!("{p}job");
    pin_dead = pin!("{p}dead");
    /// First the pin at `?2`, then queue `?3`'s history with the position. One statement, because
    /// it runs once per job.
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
    use dq_core::Order;
    use rusqlite::{Connection, StatementStatus};

    use super::*;
    use crate::listings::Listing;
    use crate::{connection, schema};

    /// They scan or sort a table that stays small (`meta`, queues, leases).
    const MAY_SCAN: [&str; 16] = [
        "require_flow",
        "counters",
        "minimums",
        "claim_limits",
        "store_id",
        "save_counters",
        "queue_names",
        "newest_queue",
        "count_leases",
        "shorten_leases",
        "runners",
        "remove_runners",
        "last_quarantined",
        "Running",
        "ExpiredScheduled",
        "ExpiredReady",
    ];

    fn listings() -> impl Iterator<Item = (String, String)> {
        use Listing::*;
        let waiting = [Scheduled, Ready, ParkedScheduled, ParkedReady];
        let others = [ExpiredScheduled, ExpiredReady, Running, Dead, Ended];
        let all: Vec<Listing> = waiting.into_iter().chain(others).collect();
        all.into_iter().flat_map(|listing| {
            [Order::Ascending, Order::Descending].into_iter().flat_map(move |order| {
                [true, false]
                    .map(|payloads| (format!("{listing:?}"), listing.sql("dq_", order, payloads)))
            })
        })
    }

    #[test]
    fn no_statement_scans_or_sorts_a_table_that_grows() {
        let mut conn = Connection::open_in_memory().unwrap();
        schema::ensure(&mut conn, "dq_").unwrap();
        for (name, text) in Statements::new("dq_").all().into_iter().chain(listings()) {
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
            assert!(!(scans || sorts) || MAY_SCAN.contains(&&*name), "{name}: {steps:?}");
        }
    }

    #[test]
    fn no_statement_is_parsed_twice() {
        let mut conn = Connection::open_in_memory().unwrap();
        connection::keep_plans(&conn).unwrap();
        schema::ensure(&mut conn, "dq_").unwrap();
        for (name, text) in Statements::new("dq_").all() {
            let mut parsed = Vec::new();
            for value in [1, 2] {
                let mut statement = conn.prepare_cached(&text).unwrap();
                let values = vec![value; statement.parameter_count()];
                let mut rows = statement.query(rusqlite::params_from_iter(values)).unwrap();
                // Some violate constraints with these values.
                while rows.next().is_ok_and(|row| row.is_some()) {}
                drop(rows);
                parsed.push(statement.get_status(StatementStatus::RePrepare));
            }
            assert_eq!(parsed, [0, 0], "{name}");
        }
    }
}
