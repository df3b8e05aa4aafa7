//! Calls that take several log entries because one would be too large.

use dq_core::Result;
use futures_util::future::join_all;
use serde::Serialize;

use crate::chunks::chunks;
use crate::error::outcome_unknown;
use crate::log::wire::encoded_size;

const MAX_ENTRY_BYTES: u64 = 128 * 1024;
/// More items would delay other entries too long while this one is applied.
pub(crate) const MAX_ENTRY_ITEMS: usize = 1_000;

/// Appends the items of a call, `call` for each entry. Returns their results in order.
///
/// # Errors
/// The error of the last entry that failed. If there are several entries, others may have taken
/// effect, so a retryable error becomes `OutcomeUnknown`.
pub(crate) async fn append<T: Serialize, R, F: Future<Output = Result<Vec<R>>>>(
    items: Vec<T>,
    call: impl Fn(Vec<T>) -> F,
) -> Result<Vec<R>> {
    let entries = chunks(items, MAX_ENTRY_ITEMS, MAX_ENTRY_BYTES, encoded_size);
    let calls: Vec<_> = entries.map(call).collect();
    let has_several = calls.len() > 1;
    let mut results = Vec::new();
    let mut failure = None;
    for called in join_all(calls).await {
        match called {
            Ok(of_entry) => results.extend(of_entry),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        None => Ok(results),
        Some(error) if has_several && error.is_retryable() => Err(outcome_unknown(&error)),
        Some(error) => Err(error),
    }
}
