//! The operations that are measured on each data structure.

/// A data structure for pending jobs. Jobs have numbers from 0; times are milliseconds from 0.
pub(super) trait Index {
    fn insert(&mut self, number: u32, at: i64);

    fn cancel(&mut self, number: u32);

    /// Advances the structure's clock; not measured.
    fn advance(&mut self, _now: i64) {}

    /// Removes one due job; `false` if there is none.
    fn pop(&mut self, now: i64) -> bool;
}
