//! The operations measured on each data structure.

/// A data structure for pending jobs. Job numbers start at 0 and arrive in order without gaps, so
/// they can serve as indexes. Times are milliseconds from 0.
pub(super) trait Index {
    fn insert(&mut self, number: u32, at: i64);

    fn cancel(&mut self, number: u32);

    /// Advances the structure's own clock, if any, before each run of [`pop`](Self::pop) calls with
    /// the same time. Not measured.
    fn advance(&mut self, _now: i64) {}

    /// Removes one due job. Returns `false` if no job is due.
    fn pop(&mut self, now: i64) -> bool;
}
