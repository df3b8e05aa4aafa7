//! Reads the replies of scripts, item by item. An item of the wrong kind is `None`.

use bytes::Bytes;
use redis::Value;

use crate::redisson::member::OTHER_FORMAT;

/// The items of a reply that have not been read yet.
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

    /// A list in the list.
    pub(crate) fn list(&mut self) -> Option<Self> {
        Self::new(self.0.next()?)
    }

    /// A list in the list, or the refusal in its place.
    pub(crate) fn list_or_refusal(&mut self) -> Option<Result<Self, Refusal>> {
        match self.0.next()? {
            Value::Array(items) => Some(Ok(Self(items.into_iter()))),
            other => Refusal::read(&other).map(Err),
        }
    }

    /// A number: an integer, or text as scores are written.
    pub(crate) fn number(&mut self) -> Option<i64> {
        number(&self.0.next()?)
    }

    /// A number or nil.
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

/// Why a script did nothing, or not for one of its partitions: a status reply in place of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The partition is closed: the number of shards of its queue has changed, or is changing.
    Closed,
    /// A key of the partition has another type.
    WrongType,
    /// The job with this number, from 1, has the handle of a job with another id.
    IdCollision(usize),
    /// The queue holds members of another format; of the Redisson layout only.
    OtherFormat,
}

impl Refusal {
    /// Reads a status reply; `None` if the value is none of these.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        let Value::SimpleString(status) = value else { return None };
        let (code, argument) = status.split_once(' ').unwrap_or((status, ""));
        match code {
            "CLOSED" => Some(Self::Closed),
            "WRONG_TYPE" => Some(Self::WrongType),
            "ID_COLLISION" => argument.parse().ok().map(Self::IdCollision),
            OTHER_FORMAT => Some(Self::OtherFormat),
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
