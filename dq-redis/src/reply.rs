//! Reading what scripts answer, step by step. Anything unexpected is `None`.

use bytes::Bytes;
use redis::Value;

/// The rest of an answer's items.
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

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A list in the list.
    pub(crate) fn list(&mut self) -> Option<Self> {
        Self::new(self.0.next()?)
    }

    /// A list in the list, or the text in its place.
    pub(crate) fn list_or_text(&mut self) -> Option<Result<Self, String>> {
        match self.0.next()? {
            Value::Array(items) => Some(Ok(Self(items.into_iter()))),
            text => Some(Err(String::from_utf8_lossy(&bytes(text)?).into_owned())),
        }
    }

    /// A number, in whatever form scripts and scores come.
    pub(crate) fn number(&mut self) -> Option<i64> {
        number(&self.0.next()?)
    }

    /// A number or nothing.
    pub(crate) fn maybe(&mut self) -> Option<Option<i64>> {
        match self.0.next()? {
            Value::Nil => Some(None),
            value => number(&value).map(Some),
        }
    }

    pub(crate) fn bytes(&mut self) -> Option<Bytes> {
        bytes(self.0.next()?)
    }
}

/// The layout that a shard holds, if its script refused to work with the one that it was told.
pub(crate) fn other_layout(value: &Value) -> Option<&str> {
    match value {
        Value::SimpleString(text) => text.strip_prefix("LAYOUT "),
        _ => None,
    }
}

pub(crate) fn bytes(value: Value) -> Option<Bytes> {
    match value {
        Value::BulkString(bytes) => Some(bytes.into()),
        Value::SimpleString(text) => Some(text.into_bytes().into()),
        _ => None,
    }
}

pub(crate) fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        Value::BulkString(text) => {
            let text = str::from_utf8(text).ok()?;
            text.parse().ok().or_else(|| {
                // Scores of 10^17 and more come with an exponent.
                let number: f64 = text.parse().ok()?;
                number.is_finite().then_some(number as i64)
            })
        }
        _ => None,
    }
}
