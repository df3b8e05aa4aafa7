//! Reads the replies of scripts, item by item. `None` always says that the reply is malformed: an
//! item is missing or of another type.

use bytes::Bytes;
use redis::Value;

/// The items of a reply that have not been read yet.
#[derive(Debug)]
pub(crate) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    /// Reads a list. `None` if the value is none.
    pub(crate) fn new(value: Value) -> Option<Self> {
        match value {
            Value::Array(items) => Some(Self(items.into_iter())),
            _ => None,
        }
    }

    /// Whether all items were read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// The next item, a list.
    pub(crate) fn list(&mut self) -> Option<Self> {
        Self::new(self.0.next()?)
    }

    /// The next item, a list or a refusal in its place.
    pub(crate) fn list_or_refusal(&mut self) -> Option<Result<Self, Refusal>> {
        match self.0.next()? {
            Value::Array(items) => Some(Ok(Self(items.into_iter()))),
            other => Refusal::read(&other).map(Err),
        }
    }

    /// The next item, a number: an integer, or the text of a score.
    pub(crate) fn number(&mut self) -> Option<i64> {
        number(&self.0.next()?)
    }

    /// The next item, a number or nil. The inner `None` is nil.
    pub(crate) fn number_or_nil(&mut self) -> Option<Option<i64>> {
        match self.0.next()? {
            Value::Nil => Some(None),
            value => number(&value).map(Some),
        }
    }

    /// The next item, a string.
    pub(crate) fn bytes(&mut self) -> Option<Bytes> {
        bytes(self.0.next()?)
    }
}

/// A status reply in place of a result: the script did nothing, or nothing for one of its
/// partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The partition is closed: the number of shards of its queue has changed, or is changing.
    Closed,
    /// A key of the partition has another type.
    WrongType,
    /// This version is too old for the format of the partition; see `format.rs`.
    Format,
    /// The job with this number in the call, from 1, has the handle of a job with another id.
    IdCollision(usize),
}

impl Refusal {
    /// Reads a status reply; `None` if the value is none of these.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        let Value::SimpleString(status) = value else { return None };
        let (code, argument) = status.split_once(' ').unwrap_or((status, ""));
        match code {
            "CLOSED" => Some(Self::Closed),
            "WRONG_TYPE" => Some(Self::WrongType),
            "FORMAT" => Some(Self::Format),
            "ID_COLLISION" => argument.parse().ok().map(Self::IdCollision),
            _ => None,
        }
    }
}

/// The bytes of a string. `None` if the value is none.
pub(crate) fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(bytes.into()),
        _ => None,
    }
}

/// An integer, or the text of a score. `None` if the value is neither.
pub(crate) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        Value::BulkString(text) => {
            let text = str::from_utf8(text).ok()?;
            text.parse().ok().or_else(|| {
                // Redis writes scores of 10^17 and more with an exponent.
                let number: f64 = text.parse().ok()?;
                number.is_finite().then_some(number as i64)
            })
        }
        _ => None,
    }
}
