//! Reads replies item by item. A missing item or one of another type is an error.

use bytes::Bytes;
use dq_core::{Result, Timestamp};
use redis::Value;

use crate::error::unexpected;

#[derive(Debug)]
pub(crate) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    pub(crate) fn new(value: Value) -> Result<Self> {
        match value {
            Value::Array(items) => Ok(Self(items.into_iter())),
            _ => Err(unexpected()),
        }
    }

    fn item(&mut self) -> Result<Value> {
        self.0.next().ok_or_else(unexpected)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    pub(crate) fn list(&mut self) -> Result<Self> {
        Self::new(self.item()?)
    }

    pub(crate) fn list_or_nil(&mut self) -> Result<Option<Self>> {
        match self.item()? {
            Value::Nil => Ok(None),
            value => Self::new(value).map(Some),
        }
    }

    pub(crate) fn list_or_refusal(&mut self) -> Result<Result<Self, Refusal>> {
        match self.item()? {
            Value::Array(items) => Ok(Ok(Self(items.into_iter()))),
            other => Refusal::read(&other).map(Err).ok_or_else(unexpected),
        }
    }

    pub(crate) fn number(&mut self) -> Result<i64> {
        number(&self.item()?)
    }

    pub(crate) fn count(&mut self) -> Result<u64> {
        count(&self.item()?)
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp> {
        self.number().map(Timestamp::from_millis)
    }

    pub(crate) fn time_or_nil(&mut self) -> Result<Option<Timestamp>> {
        match self.item()? {
            Value::Nil => Ok(None),
            value => number(&value).map(|time| Some(Timestamp::from_millis(time))),
        }
    }

    pub(crate) fn bytes_or_nil(&mut self) -> Result<Option<Bytes>> {
        match self.item()? {
            Value::Nil => Ok(None),
            value => bytes(value).map(Some),
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<Bytes> {
        bytes(self.item()?)
    }
}

/// A status reply: the script did nothing, or nothing for one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The partition is closed: its queue's shard count has changed or is changing.
    Closed,
    WrongType,
    /// This version is too old for the partition's format.
    Format,
    /// The handle of this job (its number in the call, from 1) belongs to another id.
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

pub(crate) fn bytes(value: Value) -> Result<Bytes> {
    match value {
        Value::BulkString(bytes) => Ok(bytes.into()),
        _ => Err(unexpected()),
    }
}

pub(crate) fn number(value: &Value) -> Result<i64> {
    let parse = |text: &[u8]| {
        let text = str::from_utf8(text).ok()?;
        text.parse().ok().or_else(|| {
            // Redis writes scores of 10^17 and more with an exponent.
            let number: f64 = text.parse().ok()?;
            number.is_finite().then_some(number as i64)
        })
    };
    match value {
        Value::Int(number) => Ok(*number),
        Value::BulkString(text) => parse(text).ok_or_else(unexpected),
        _ => Err(unexpected()),
    }
}

pub(crate) fn count(value: &Value) -> Result<u64> {
    u64::try_from(number(value)?).map_err(|_| unexpected())
}
