//! The text form of listing cursors. Clients pass it back unchanged.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dq_core::{Cursor, Error, JobState, Order, Timestamp};

use crate::error::{OpsError, Result};

/// The first byte, so that the format can change.
const VERSION: u8 = 1;

/// Bytes of the version, the listing, the time and the sequence number.
const LENGTH: usize = 1 + 1 + 8 + 16;

pub(crate) fn encode(state: JobState, order: Order, cursor: Cursor) -> String {
    let mut bytes = vec![VERSION, listing(state, order)];
    bytes.extend(cursor.at.as_millis().to_be_bytes());
    bytes.extend(cursor.seq.to_be_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Reads a cursor: `InvalidInput` for other text, `Conflict` for another listing's cursor.
pub(crate) fn decode(state: JobState, order: Order, text: &str) -> Result<Cursor> {
    let bytes = if text.len() > 64 { None } else { URL_SAFE_NO_PAD.decode(text).ok() };
    let bytes = bytes.and_then(|bytes| <[u8; LENGTH]>::try_from(bytes).ok());
    let remedy = "pass the `next` of the page before, with the same state and order";
    let parts = bytes.as_ref().and_then(|bytes| {
        let (head, rest) = bytes.split_first_chunk::<2>()?;
        let (at, seq) = rest.split_first_chunk::<8>()?;
        Some((head, i64::from_be_bytes(*at), u128::from_be_bytes(seq.try_into().ok()?)))
    });
    let Some((head, at, seq)) = parts else {
        return Err(Error::invalid("`after` is not a cursor").remedy(remedy).into());
    };
    if *head != [VERSION, listing(state, order)] {
        return Err(OpsError::conflict("the cursor `after` is one of another listing", remedy));
    }
    Ok(Cursor { at: Timestamp::from_millis(at), seq })
}

/// Returns the number of a listing, by which a cursor of another one is recognized.
fn listing(state: JobState, order: Order) -> u8 {
    let state = match state {
        JobState::Scheduled => 0,
        JobState::Ready => 1,
        JobState::Running => 2,
        JobState::Dead => 3,
        JobState::Ended => 4,
        _ => u8::MAX >> 1,
    };
    state << 1 | u8::from(order == Order::Descending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_belongs_to_one_listing() {
        let cursor = Cursor { at: Timestamp::from_millis(-5), seq: u128::MAX - 1 };
        let text = encode(JobState::Dead, Order::Ascending, cursor);
        assert_eq!(decode(JobState::Dead, Order::Ascending, &text).unwrap(), cursor);
        let other = decode(JobState::Dead, Order::Descending, &text).unwrap_err();
        assert_eq!(other.kind(), "conflict");
        assert!(decode(JobState::Ready, Order::Ascending, &text).is_err());
        for garbage in ["", "garbage", "AAAA", &"A".repeat(1_000_000)] {
            let refused = decode(JobState::Dead, Order::Ascending, garbage).unwrap_err();
            assert_eq!(refused.kind(), "invalid input", "{garbage:.20}");
        }
    }
}
