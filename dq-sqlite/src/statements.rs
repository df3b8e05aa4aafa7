//! The SQL statements that are run more than once. Their parameters are documented where the number
//! alone does not show them; `{p}` stands for the table prefix, `q` is a queue id, and all times
//! are Unix milliseconds.

/// Columns of a job, in the order in which `row.rs` reads them.
macro_rules! columns {
    () => {
        "id, key, due, created, attempts, deliveries, losses, max_attempts, headers, payload"
    };
}

macro_rules! statements {
    ($($(#[doc = $doc:literal])* $name:ident = $text:expr;)*) => {
        /// SQL statements with the table prefix filled in.
        #[derive(Debug)]
        pub(crate) struct Statements {
            $($(#[doc = $doc])* pub(crate) $name: String,)*
        }

        impl Statements {
            pub(crate) fn new(prefix: &str) -> Self {
                Self { $($name: $text.replace("{p}", prefix),)* }
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
    meta = "SELECT format, seq, token, store FROM {p}meta";
    save_counters = "UPDATE {p}meta SET seq = ?1, token = ?2";

    // Queues.
    find_queue = "SELECT q FROM {p}queue WHERE name = ?1";
    name_queue = "SELECT name FROM {p}queue WHERE q = ?1";
    add_queue = "INSERT INTO {p}queue (name) VALUES (?1) RETURNING q";
    /// The first query of a claim for each queue, and the only one if no job is due.
    queue_state = "SELECT q, paused, \
        (SELECT at FROM {p}due AS due WHERE due.q = queue.q ORDER BY at, seq LIMIT 1) \
        FROM {p}queue AS queue WHERE name = ?1";
    pause_queue = "UPDATE {p}queue SET paused = ?2 WHERE q = ?1 AND paused <> ?2";
    add_totals = "UPDATE {p}queue SET created = created + ?2, done = done + ?3, \
        skipped = skipped + ?4, cancelled = cancelled + ?5, replaced = replaced + ?6, \
        removed = removed + ?7 WHERE q = ?1";
    queue_row = "SELECT q, paused, created, done, skipped, cancelled, replaced, removed \
        FROM {p}queue WHERE name = ?1";
    queue_names = "SELECT name, q FROM {p}queue ORDER BY name";

    // Live jobs.
    /// One row of plain values: for any other INSERT SQLite keeps a statement journal, which costs
    /// a quarter of the throughput.
    add_job = "INSERT INTO {p}job (seq, id, q, key, due, created, max_attempts, headers, payload) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT DO NOTHING";
    job_by_id = "SELECT seq, id, due, q FROM {p}job WHERE id = ?1";
    job_by_key = "SELECT seq, id, due, q FROM {p}job WHERE q = ?1 AND key = ?2";
    job_due = "SELECT due FROM {p}job WHERE seq = ?1";
    reschedule_job = "UPDATE {p}job SET due = ?2 WHERE seq = ?1";
    /// After a retry or snooze: counts the delivery and, if `?3` is 1, the attempt. Resets the
    /// consecutive losses.
    requeue_job = "UPDATE {p}job SET due = ?2, attempts = attempts + ?3, \
        deliveries = deliveries + 1, losses = 0 WHERE seq = ?1";
    /// After a release or a lapse: counts the delivery and adds `?2` losses; the due time stays.
    release_job = "UPDATE {p}job SET deliveries = deliveries + 1, losses = losses + ?2 \
        WHERE seq = ?1 RETURNING due";
    remove_job = "DELETE FROM {p}job WHERE seq = ?1";

    // Waiting jobs.
    add_due = "INSERT INTO {p}due (q, at, seq) VALUES (?1, ?2, ?3)";
    remove_due = "DELETE FROM {p}due WHERE q = ?1 AND at = ?2 AND seq = ?3";
    is_due = "SELECT 1 FROM {p}due WHERE q = ?1 AND at = ?2 AND seq = ?3";
    earliest_due = "SELECT at FROM {p}due WHERE q = ?1 ORDER BY at, seq LIMIT 1";
    first_due = "SELECT due.at FROM {p}queue AS queue CROSS JOIN {p}due AS due ON due.q = queue.q \
        WHERE queue.name = ?1 ORDER BY due.at LIMIT 1";
    due_jobs = concat!(
        "SELECT ", columns!(), ", due.seq, due.at FROM {p}due AS due CROSS JOIN {p}job AS job \
        ON job.seq = due.seq WHERE due.q = ?1 AND due.at <= ?2 ORDER BY due.at, due.seq LIMIT ?3"
    );
    /// Removes the waiting jobs up to and including one with due time `?2` and `seq` `?3`.
    remove_due_until = "DELETE FROM {p}due WHERE q = ?1 AND (at, seq) <= (?2, ?3)";
    /// Waiting jobs after a position, with a `seq` of at most `?4`.
    due_after = "SELECT at, seq FROM {p}due WHERE q = ?1 AND (at, seq) > (?2, ?3) AND seq <= ?4 \
        ORDER BY at, seq LIMIT ?5";
    count_due = "SELECT count(*) FROM {p}due WHERE q = ?1 AND at <= ?2";
    count_later = "SELECT count(*) FROM {p}due WHERE q = ?1 AND at > ?2";

    // Running jobs.
    add_lease = "INSERT INTO {p}lease (seq, q, until, token, worker) VALUES (?1, ?2, ?3, ?4, ?5)";
    lease_of_job = "SELECT job.seq, lease.q, lease.token FROM {p}job AS job \
        CROSS JOIN {p}lease AS lease ON lease.seq = job.seq WHERE job.id = ?1";
    extend_lease = "UPDATE {p}lease SET until = ?2 WHERE seq = ?1";
    remove_lease = "DELETE FROM {p}lease WHERE seq = ?1";
    /// Ends a lease if it is still held, and returns the job's `seq`. One statement, since it runs
    /// once per job.
    end_lease = "DELETE FROM {p}lease WHERE token = ?3 \
        AND seq = (SELECT seq FROM {p}job WHERE id = ?1 AND q = ?2) RETURNING seq";
    lapsed_leases = "SELECT seq, q FROM {p}lease WHERE until <= ?1";
    has_lapsed = "SELECT 1 FROM {p}lease WHERE until <= ?1 LIMIT 1";
    lease_ends = "SELECT until, q FROM {p}lease ORDER BY until";
    lease_until = "SELECT until FROM {p}lease WHERE seq = ?1";
    count_leases = "SELECT q, count(*) FROM {p}lease GROUP BY q";

    // Dead jobs.
    add_dead = "INSERT INTO {p}dead (seq, id, q, key, due, created, attempts, deliveries, losses, \
        max_attempts, died, kind, message, headers, payload) \
        SELECT seq, id, q, key, due, created, attempts + ?2, deliveries + ?3, losses, \
        max_attempts, ?4, ?5, ?6, headers, payload FROM {p}job WHERE seq = ?1";
    /// Dead jobs after a position that died at `?4` or before.
    dead_after = "SELECT died, seq FROM {p}dead WHERE q = ?1 AND (died, seq) > (?2, ?3) \
        AND died <= ?4 ORDER BY died, seq LIMIT ?5";
    latest_died = "SELECT died FROM {p}dead WHERE q = ?1 ORDER BY died DESC LIMIT 1";
    dead_by_id = "SELECT seq, due, q FROM {p}dead WHERE id = ?1";
    /// Makes a dead job live again, unless another live job has its id or key.
    replay_job = "INSERT INTO {p}job (seq, id, q, key, due, created, attempts, deliveries, losses, \
        max_attempts, headers, payload) \
        SELECT seq, id, q, key, ?2, created, 0, deliveries, 0, max_attempts, headers, payload \
        FROM {p}dead WHERE seq = ?1 ON CONFLICT DO NOTHING";
    remove_dead = "DELETE FROM {p}dead WHERE seq = ?1";
    count_dead = "SELECT count(*) FROM {p}dead WHERE q = ?1";

    // Pages of jobs after a position (`?2`, `?3`), and single jobs. The bound `?4` is the current
    // time; see `browse`.
    browse_scheduled = concat!(
        "SELECT ", columns!(), ", due.seq, due.at FROM {p}due AS due CROSS JOIN {p}job AS job \
        ON job.seq = due.seq WHERE due.q = ?1 AND (due.at, due.seq) > (?2, ?3) AND due.at > ?4 \
        ORDER BY due.at, due.seq LIMIT ?5"
    );
    browse_ready = concat!(
        "SELECT ", columns!(), ", due.seq, due.at FROM {p}due AS due CROSS JOIN {p}job AS job \
        ON job.seq = due.seq WHERE due.q = ?1 AND (due.at, due.seq) > (?2, ?3) AND due.at <= ?4 \
        ORDER BY due.at, due.seq LIMIT ?5"
    );
    browse_running = concat!(
        "SELECT ", columns!(), ", lease.seq, lease.until FROM {p}lease AS lease \
        CROSS JOIN {p}job AS job ON job.seq = lease.seq \
        WHERE lease.q = ?1 AND (lease.until, lease.seq) > (?2, ?3) AND lease.until > ?4 \
        ORDER BY lease.until, lease.seq LIMIT ?5"
    );
    browse_dead = concat!(
        "SELECT ", columns!(), ", seq, died, kind, message FROM {p}dead \
        WHERE q = ?1 AND (died, seq) > (?2, ?3) AND died <= ?4 ORDER BY died, seq LIMIT ?5"
    );
    view_job = concat!("SELECT ", columns!(), ", seq, due FROM {p}job WHERE seq = ?1");
    view_dead = concat!(
        "SELECT ", columns!(), ", seq, died, kind, message FROM {p}dead WHERE id = ?1 AND q = ?2"
    );
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::schema;

    /// Statements that scan or sort a table which stays small: the `meta` row, queues, leases.
    const FULL_SCANS: [&str; 6] =
        ["meta", "save_counters", "queue_names", "lease_ends", "count_leases", "browse_running"];

    #[test]
    fn no_statement_scans_or_sorts_a_table_that_grows() {
        let mut conn = Connection::open_in_memory().unwrap();
        schema::ensure(&mut conn, "dq_").unwrap();
        let statements = Statements::new("dq_");
        for (name, text) in statements.all() {
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
            assert!(!(scans || sorts) || FULL_SCANS.contains(&name), "{name}: {steps:?}");
        }
    }
}
