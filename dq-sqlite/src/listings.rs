//! SQL statements for `browse`: one per listing, order, and choice to read payloads.
//!
//! The parameters are queue id, position (`?2`, `?3`), time bound (see `browse`) and row count. A
//! running job shows the lease end that `shorten_leases` (in `statements.rs`) would set: earlier
//! than `until` if the clock was set back. The columns are the job's, `seq`, the time that orders
//! the listing, `last_error`, and the listing's own.

use dq_core::Order;

/// Ordered by a time and `seq`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Listing {
    Scheduled,
    /// Jobs with expired leases, merged with the scheduled ones.
    LapsedScheduled,
    Ready,
    /// Jobs with expired leases, merged with the ready ones.
    LapsedReady,
    Running,
    Dead,
    Ended,
}

/// In [`Listing`] order.
const TEMPLATES: [(&str, &str); 7] = [
    (
        "scheduled",
        "SELECT {columns}, due.seq, due.at, note.last_error FROM {p}due AS due \
         CROSS JOIN {p}job AS job ON job.seq = due.seq \
         LEFT JOIN {p}note AS note ON note.seq = due.seq \
         WHERE due.q = ?1 AND (due.at, due.seq) {beyond} (?2, ?3) AND due.at > ?4 \
         ORDER BY due.at {direction}, due.seq {direction} LIMIT ?5",
    ),
    (
        "lapsed_scheduled",
        "SELECT {columns}, job.seq, job.due, note.last_error FROM {p}lease AS lease \
         CROSS JOIN {p}job AS job ON job.seq = lease.seq \
         LEFT JOIN {p}note AS note ON note.seq = lease.seq \
         WHERE lease.q = ?1 AND lease.until <= ?4 AND (job.due, job.seq) {beyond} (?2, ?3) \
         AND job.due > ?4 ORDER BY job.due {direction}, job.seq {direction} LIMIT ?5",
    ),
    (
        "ready",
        "SELECT {columns}, due.seq, due.at, note.last_error FROM {p}due AS due \
         CROSS JOIN {p}job AS job ON job.seq = due.seq \
         LEFT JOIN {p}note AS note ON note.seq = due.seq \
         WHERE due.q = ?1 AND (due.at, due.seq) {beyond} (?2, ?3) AND due.at <= ?4 \
         ORDER BY due.at {direction}, due.seq {direction} LIMIT ?5",
    ),
    (
        "lapsed_ready",
        "SELECT {columns}, job.seq, job.due, note.last_error FROM {p}lease AS lease \
         CROSS JOIN {p}job AS job ON job.seq = lease.seq \
         LEFT JOIN {p}note AS note ON note.seq = lease.seq \
         WHERE lease.q = ?1 AND lease.until <= ?4 AND (job.due, job.seq) {beyond} (?2, ?3) \
         AND job.due <= ?4 ORDER BY job.due {direction}, job.seq {direction} LIMIT ?5",
    ),
    (
        "running",
        "SELECT {columns}, lease.seq, lease.until, note.last_error, \
         min(lease.until, ?4 + lease.until - lease.granted), lease.worker, lease.since \
         FROM {p}lease AS lease CROSS JOIN {p}job AS job ON job.seq = lease.seq \
         LEFT JOIN {p}note AS note ON note.seq = lease.seq \
         WHERE lease.q = ?1 AND (lease.until, lease.seq) {beyond} (?2, ?3) AND lease.until > ?4 \
         ORDER BY lease.until {direction}, lease.seq {direction} LIMIT ?5",
    ),
    (
        "dead",
        "SELECT {columns}, dead.seq, dead.died, note.last_error, dead.kind, dead.message \
         FROM {p}dead AS dead LEFT JOIN {p}note AS note ON note.seq = dead.seq \
         WHERE dead.q = ?1 AND (dead.died, dead.seq) {beyond} (?2, ?3) AND dead.died <= ?4 \
         ORDER BY dead.died {direction}, dead.seq {direction} LIMIT ?5",
    ),
    (
        "ended",
        "SELECT id, key, due, coalesce(first_due, due), created, attempts, deliveries, losses, \
         max_attempts, NULL, x'', seq, at, last_error, ending, reason, worker, started FROM {p}ended \
         WHERE q = ?1 AND (at, seq) {beyond} (?2, ?3) AND at >= ?4 \
         ORDER BY at {direction}, seq {direction} LIMIT ?5",
    ),
];

const COLUMNS: &str = "id, key, due, coalesce(first_due, due), created, attempts, deliveries, \
    losses, max_attempts, headers";

#[derive(Debug)]
pub(crate) struct Listings(Vec<ListingSql>);

#[derive(Debug)]
struct ListingSql {
    #[cfg(test)]
    name: &'static str,
    /// By order, and by whether payloads are read.
    sql: [[String; 2]; 2],
}

impl Listings {
    pub(crate) fn new(prefix: &str) -> Self {
        let sql = |template: &str, beyond, direction, payload| {
            template
                .replace("{p}", prefix)
                .replace("{columns}", &format!("{COLUMNS}, {payload}"))
                .replace("{beyond}", beyond)
                .replace("{direction}", direction)
        };
        let listing = |(_name, template): (&'static str, &str)| ListingSql {
            #[cfg(test)]
            name: _name,
            sql: [(">", "ASC"), ("<", "DESC")].map(|(beyond, direction)| {
                ["x''", "payload"].map(|payload| sql(template, beyond, direction, payload))
            }),
        };
        Self(TEMPLATES.into_iter().map(listing).collect())
    }

    pub(crate) fn sql(&self, listing: Listing, order: Order, payloads: bool) -> &str {
        let order = match order {
            Order::Ascending => 0,
            Order::Descending => 1,
        };
        &self.0[listing as usize].sql[order][usize::from(payloads)]
    }

    #[cfg(test)]
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, &String)> {
        self.0
            .iter()
            .flat_map(|listing| listing.sql.iter().flatten().map(|sql| (listing.name, sql)))
    }
}
