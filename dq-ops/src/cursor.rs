//! The text form of a position in a listing, which clients pass back as they got it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dq_core::{Cursor, Error, JobState, Order, Result, Timestamp};

/// The first byte of the format.
const VERSION: u8 = 1;
const LENGTH: usize = 1 + 1 + 8 + 16;

/// Encodes a position in the listing of a state and an order.
pub(crate) fn encode(state: JobState, order: Order, cursor: Cursor) -> String {
    let mut bytes = vec![VERSION, listing(state, order)];
    bytes.extend(cursor.at.as_millis().to_be_bytes());
    bytes.extend(cursor.seq.to_be_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes a position.
///
/// # Errors
/// `InvalidInput` if it is not one of this listing.
pub(crate) fn decode(state: JobState, order: Order, text: &str) -> Result<Cursor> {
    let bytes = if text.len() > 64 { None } else { URL_SAFE_NO_PAD.decode(text).ok() };
    let bytes = bytes.and_then(|bytes| <[u8; LENGTH]>::try_from(bytes).ok());
    let invalid = || {
        Error::invalid("the cursor `after` is not one of this listing")
            .remedy("pass the `next` of the page before, with the same state and order")
    };
    let bytes = bytes.ok_or_else(invalid)?;
    let (head, rest) = bytes.split_at(2);
    let (at, seq) = rest.split_at(8);
    if head != [VERSION, listing(state, order)] {
        return Err(invalid());
    }
    let at = at.try_into().map(i64::from_be_bytes).map_err(|_| invalid())?;
    let seq = seq.try_into().map(u128::from_be_bytes).map_err(|_| invalid())?;
    Ok(Cursor { at: Timestamp::from_millis(at), seq })
}

/// A number of the listing.
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
        assert!(decode(JobState::Dead, Order::Descending, &text).is_err());
        assert!(decode(JobState::Ready, Order::Ascending, &text).is_err());
        for garbage in ["", "garbage", "AAAA", &"A".repeat(1_000_000)] {
            assert!(decode(JobState::Dead, Order::Ascending, garbage).is_err());
        }
    }
}
