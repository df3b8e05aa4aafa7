//! SQL statements for `browse`.
//!
//! The parameters are queue id, position (`?2`, `?3`), time bound (see `browse`) and row count. The
//! columns are the job's, `seq`, the time that orders the listing, `last_error`, and the state's
//! own: see `row.rs`.

use dq_core::Order;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Listing {
    Scheduled,
    ExpiredScheduled,
    Ready,
    ExpiredReady,
    ParkedScheduled,
    ParkedReady,
    Running,
    Dead,
    Ended,
}

const UNLEASED: &str = "NULL, NULL, NULL";

/// The first is the end that `shorten_leases` (in `statements.rs`) would set: earlier than `until`
/// if the clock was set back.
const LEASE: &str = "min(lease.until, ?4 + lease.until - lease.granted), lease.worker, lease.since";

impl Listing {
    pub(crate) fn sql(self, prefix: &str, order: Order, payloads: bool) -> String {
        let (table, at, seq, state_columns, filter) = match self {
            Self::Scheduled => ("due", "due.at", "due.seq", UNLEASED, "due.at > ?4"),
            Self::ExpiredScheduled => {
                ("lease", "job.due", "job.seq", LEASE, "lease.until <= ?4 AND job.due > ?4")
            }
            Self::Ready => ("due", "due.at", "due.seq", UNLEASED, "due.at <= ?4"),
            Self::ExpiredReady => {
                ("lease", "job.due", "job.seq", LEASE, "lease.until <= ?4 AND job.due <= ?4")
            }
            Self::ParkedScheduled => {
                ("parked", "parked.at", "parked.seq", UNLEASED, "parked.at > ?4")
            }
            Self::ParkedReady => ("parked", "parked.at", "parked.seq", UNLEASED, "parked.at <= ?4"),
            Self::Running => ("lease", "lease.until", "lease.seq", LEASE, "lease.until > ?4"),
            Self::Dead => {
                ("dead", "dead.died", "dead.seq", "dead.kind, dead.message", "dead.died <= ?4")
            }
            Self::Ended => {
                let columns = "ending, reason, ended.worker, ended.started";
                ("ended", "ended.at", "ended.seq", columns, "ended.at >= ?4")
            }
        };
        let join_job = match table {
            "due" | "lease" | "parked" => {
                format!("CROSS JOIN {prefix}job AS job ON job.seq = {table}.seq")
            }
            _ => String::new(),
        };
        let (last_error, join_note) = match table {
            "ended" => ("ended.last_error", String::new()),
            _ => (
                "note.last_error",
                format!("LEFT JOIN {prefix}note AS note ON note.seq = {table}.seq"),
            ),
        };
        let (headers, payload) = match (table, payloads) {
            ("ended", _) => ("NULL", "x''"),
            (_, true) => ("headers", "payload"),
            (_, false) => ("headers", "x''"),
        };
        let (beyond, direction) = match order {
            Order::Ascending => (">", "ASC"),
            Order::Descending => ("<", "DESC"),
        };
        format!(
            "SELECT id, key, due, coalesce(first_due, due), created, attempts, deliveries, losses, \
             max_attempts, {headers}, {payload}, {seq}, {at}, {last_error}, {state_columns} \
             FROM {prefix}{table} AS {table} {join_job} {join_note} \
             WHERE {table}.q = ?1 AND ({at}, {seq}) {beyond} (?2, ?3) AND {filter} \
             ORDER BY {at} {direction}, {seq} {direction} LIMIT ?5"
        )
    }
}
