//! Reads script replies item by item. `None` means a malformed reply: an item is missing or has
//! another type.

use bytes::Bytes;
use redis::Value;

#[derive(Debug)]
pub(crate) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    pub(crate) fn new(value: Value) -> Option<Self> {
        match value {
            Value::Array(items) => Some(Self(items.into_iter())),
            _ => None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    pub(crate) fn list(&mut self) -> Option<Self> {
        Self::new(self.0.next()?)
    }

    /// Reads a list, or a refusal in its place.
    pub(crate) fn list_or_refusal(&mut self) -> Option<Result<Self, Refusal>> {
        match self.0.next()? {
            Value::Array(items) => Some(Ok(Self(items.into_iter()))),
            other => Refusal::read(&other).map(Err),
        }
    }

    pub(crate) fn number(&mut self) -> Option<i64> {
        number(&self.0.next()?)
    }

    /// Reads a number or nil. The inner `None` is nil.
    pub(crate) fn number_or_nil(&mut self) -> Option<Option<i64>> {
        match self.0.next()? {
            Value::Nil => Some(None),
            value => number(&value).map(Some),
        }
    }

    pub(crate) fn bytes(&mut self) -> Option<Bytes> {
        bytes(self.0.next()?)
    }
}

/// A status reply instead of a result: the script did nothing, or nothing for one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The partition is closed: its queue's shard count has changed or is changing.
    Closed,
    WrongType,
    /// This version is too old for the partition's format; see `format.rs`.
    Format,
    /// The handle of this job (its number in the call, from 1) belongs to a job with another id.
    IdCollision(usize),
}

impl Refusal {
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

pub(crate) fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(bytes.into()),
        _ => None,
    }
}

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
