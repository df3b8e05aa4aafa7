//! Calls that take several log entries because one would be too large.

use dq_core::{Error, Result};
use futures_util::future::join_all;
use serde::Serialize;

use crate::chunks::chunks;
use crate::error::outcome_unknown;
use crate::log::wire::encoded_size;

const MAX_ENTRY_BYTES: u64 = 128 * 1024;
/// More items would delay other entries too long while this one is applied.
pub(crate) const MAX_ENTRY_ITEMS: usize = 1_000;

pub(crate) fn split<T: Serialize>(items: Vec<T>) -> Vec<Vec<T>> {
    chunks(items, MAX_ENTRY_ITEMS, MAX_ENTRY_BYTES, encoded_size).collect()
}

/// Returns the result of one entry of a call. If the call has other entries, these may have taken
/// effect, so a retryable error becomes `OutcomeUnknown`.
pub(crate) fn part<T>(has_others: bool, result: Result<T>) -> Result<T> {
    let is_partial = |error: &Error| has_others && error.is_retryable();
    result.map_err(|error| if is_partial(&error) { outcome_unknown(&error) } else { error })
}

/// Appends all entries of a call and returns their results in order.
///
/// # Errors
/// The error of the last entry that failed; `OutcomeUnknown` for a retryable one if there are
/// several entries.
pub(crate) async fn join<T>(
    calls: impl ExactSizeIterator<Item = impl Future<Output = Result<Vec<T>>>>,
) -> Result<Vec<T>> {
    let entries = calls.len();
    let mut results = Vec::new();
    let mut failure = None;
    for entry in join_all(calls).await {
        match entry {
            Ok(entry) => results.extend(entry),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        None => Ok(results),
        Some(error) => part(entries > 1, Err(error)),
    }
}
