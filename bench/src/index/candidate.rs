//! The operations that are measured on each data structure.

/// A data structure for pending jobs. Jobs are inserted in the order of their numbers, from 0 and
/// without gaps, so a structure may use the number as an index. Times are milliseconds from 0.
pub(super) trait Index {
    fn insert(&mut self, number: u32, at: i64);

    fn cancel(&mut self, number: u32);

    /// Advances the structure's own clock, if it has one, before each series of [`pop`](Self::pop)
    /// with the same time; not measured.
    fn advance(&mut self, _now: i64) {}

    /// Removes one due job; `false` if there is none.
    fn pop(&mut self, now: i64) -> bool;
}
