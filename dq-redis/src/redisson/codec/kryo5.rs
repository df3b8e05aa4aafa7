//! `Kryo5Codec`, the default of Redisson 3.19 and newer: plain values only.
//!
//! A value begins with its class: Kryo's registration number plus two, or the class name if it has
//! no number. The output of the class's serializer follows. Objects of other classes are refused:
//! Kryo writes their fields without names, in an order known only to the class file.
//!
//! | class | bytes |
//! |---|---|
//! | `Integer` | 2, zigzag varint (negative numbers are mapped to odd ones, 7 bits a byte) |
//! | `String` | 3, see [`text`](super::kryo5_text) |
//! | `Boolean` | 5, 0 or 1 |
//! | `Long` | 9, zigzag varint of at most nine bytes |
//! | `Double` | 10, eight bytes, little-endian |
//! | `byte[]` | 1, 0, the name `[B`, varint of the length plus one, the bytes |
//!
//! Handlers read a `byte[]` as a list of numbers, as serde does for `Vec<u8>`.

use bytes::Bytes;
use dq_core::{Error, Result};
use serde_json::Value;

use super::detect::wrong_codec;
use super::error::{codec_error, not_json};
use super::kryo5_text as text;

const INTEGER: u8 = 2;
const STRING: u8 = 3;
const BOOLEAN: u8 = 5;
const LONG: u8 = 9;
const DOUBLE: u8 = 10;
/// Begins a value with a class name; the zero announces the name.
const NAMED_CLASS: [u8; 2] = [1, 0];
const BYTES: &str = "[B";

pub(super) fn can_write(class: &str) -> bool {
    Class::named(class).is_some()
}

#[derive(Clone, Copy)]
enum Class {
    Text,
    Boolean,
    Integer,
    Long,
    Double,
    Bytes,
}

impl Class {
    fn named(name: &str) -> Option<Self> {
        Some(match name.strip_prefix("java.lang.").unwrap_or(name) {
            "String" => Self::Text,
            "Boolean" => Self::Boolean,
            "Integer" => Self::Integer,
            "Long" => Self::Long,
            "Double" => Self::Double,
            "byte[]" | BYTES => Self::Bytes,
            _ => return None,
        })
    }

    fn default_for(value: &Value) -> Option<Self> {
        match value {
            Value::String(_) => Some(Self::Text),
            Value::Bool(_) => Some(Self::Boolean),
            Value::Number(number) if number.is_f64() => Some(Self::Double),
            Value::Number(_) => Some(Self::Long),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }
}

pub(super) fn encode(payload: &Bytes, class: Option<&str>) -> Result<Bytes> {
    let value: Value = serde_json::from_slice(payload).map_err(not_json)?;
    let written_class = match class {
        Some(class) => Class::named(class),
        None => Class::default_for(&value),
    };
    let written = written_class.and_then(|class| write(class, &value));
    written.map(Bytes::from).ok_or_else(|| {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        };
        match class {
            Some(class) => codec_error(
                format!("the payload is {found}, which does not fit the class {class} of the codec `kryo5`"),
                "set another class for `kryo5`, or none",
            ),
            None => codec_error(
                format!("the payload is {found}, which only Java can write with Kryo5Codec"),
                "let the Java clients use TypedJsonJacksonCodec and choose the codec `json`; for \
                 a `byte[]` choose `kryo5:byte[]`",
            ),
        }
    })
}

/// `None` if the value does not fit the class.
fn write(class: Class, value: &Value) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match class {
        Class::Text => {
            out.push(STRING);
            text::write(value.as_str()?, &mut out);
        }
        Class::Boolean => out.extend([BOOLEAN, u8::from(value.as_bool()?)]),
        Class::Integer => {
            out.push(INTEGER);
            write_varint(zigzag(i32::try_from(value.as_i64()?).ok()?.into()), &mut out);
        }
        Class::Long => {
            out.push(LONG);
            write_varint(zigzag(value.as_i64()?), &mut out);
        }
        Class::Double => {
            out.push(DOUBLE);
            out.extend(value.as_f64()?.to_le_bytes());
        }
        Class::Bytes => {
            let bytes = value.as_array()?.iter().map(|byte| u8::try_from(byte.as_u64()?).ok());
            let bytes = bytes.collect::<Option<Vec<u8>>>()?;
            out.extend(NAMED_CLASS);
            text::write(BYTES, &mut out);
            write_varint(bytes.len() as u64 + 1, &mut out);
            out.extend(bytes);
        }
    }
    Some(out)
}

pub(super) fn decode(bytes: &Bytes) -> Result<Bytes> {
    let mut rest = &bytes[..];
    let value = read(&mut rest)?.filter(|_| rest.is_empty());
    let value = value.ok_or_else(|| wrong_codec("kryo5", bytes))?;
    Ok(value.to_string().into())
}

/// `None` if Kryo did not write the bytes; an error if only Java can read them.
fn read(rest: &mut &[u8]) -> Result<Option<Value>> {
    let Some(class) = rest.split_off_first() else { return Ok(None) };
    Ok(match *class {
        INTEGER => {
            let number = read_varint(rest).map(unzigzag);
            number.and_then(|number| i32::try_from(number).ok()).map(Value::from)
        }
        STRING => text::read(rest).map(Value::from),
        BOOLEAN => match rest.split_off_first() {
            Some(0) => Some(Value::Bool(false)),
            Some(1) => Some(Value::Bool(true)),
            _ => None,
        },
        LONG => read_varint(rest).map(unzigzag).map(Value::from),
        DOUBLE => match rest.split_off(..8).map(<[u8; 8]>::try_from) {
            Some(Ok(double)) => Some(finite(f64::from_le_bytes(double))?),
            _ => None,
        },
        1 if rest.split_off_first() == Some(&0) => match text::read(rest) {
            Some(class) if class == BYTES => read_bytes(rest),
            Some(class) => return Err(object_of(&class)),
            None => None,
        },
        _ => None,
    })
}

fn read_bytes(rest: &mut &[u8]) -> Option<Value> {
    let len = read_varint(rest)?.checked_sub(1)?;
    Some(Value::from(rest.split_off(..usize::try_from(len).ok()?)?))
}

/// Fails for NaN and the infinities.
fn finite(double: f64) -> Result<Value> {
    serde_json::Number::from_f64(double).map(Value::Number).ok_or_else(|| {
        codec_error(
            "the payload is a java.lang.Double that is not finite, which JSON cannot represent",
            "choose the codec `raw` and decode it yourself",
        )
    })
}

fn object_of(class: &str) -> Error {
    codec_error(
        format!("the payload is an object of the Java class {class}, written by Kryo5Codec"),
        "only Java can read it; let the Java clients use TypedJsonJacksonCodec, and choose the \
         codec `json` here",
    )
}

/// Maps 0, -1, 1, -2 … to 0, 1, 2, 3 …, so that small absolute values stay small.
fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

/// A ninth byte is the last one and holds 8 bits.
const MAX_SEVEN_BIT_BYTES: u32 = 8;

fn write_varint(mut number: u64, out: &mut Vec<u8>) {
    for _ in 0..MAX_SEVEN_BIT_BYTES {
        if number < 0x80 {
            break;
        }
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn read_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for index in 0..MAX_SEVEN_BIT_BYTES {
        let byte = *rest.split_off_first()?;
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            return Some(number);
        }
    }
    Some(number | u64::from(*rest.split_off_first()?) << (7 * MAX_SEVEN_BIT_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_do_not_fit_the_class_are_refused() {
        for (json, class, word) in [
            ("{\"secret\":1}", None, "`json`"),
            ("[1]", None, "kryo5:byte[]"),
            ("null", None, "null"),
            ("9223372036854775808", None, "a number"),
            ("2147483648", Some("java.lang.Integer"), "java.lang.Integer"),
            ("\"42\"", Some("java.lang.Long"), "a string"),
            ("[256]", Some("byte[]"), "a list"),
            ("{", None, "`raw`"),
        ] {
            let error =
                encode(&Bytes::from_static(json.as_bytes()), class).unwrap_err().to_string();
            assert!(error.contains(word) && !error.contains("secret"), "{json}: {error}");
        }
    }

    #[test]
    fn unreadable_payloads_are_named() {
        for (bytes, word) in [
            // A HashMap.
            (&b"\x01\0java.util.HashMa\xf0\x01"[..], "java.util.HashMap"),
            (b"\xac\xed\0\x05t", "SerializationCodec"),
            // A Short.
            (b"\x08\x01\0", "not a plain value"),
            (b"\x09\x80", "damaged"),
            (b"\x05\x02", "damaged"),
            (b"\x05\x01\0", "damaged"),
            (b"\x0a\0\0\0\0\0\0\xf8\x7f", "not finite"),
            (b"\x03", "damaged"),
            (b"", "empty"),
            (b"hello", "`string`"),
            (b"{\"id\":1}", "`json`"),
            (b"{\"@class\":\"a.B\"}", "`jackson`"),
        ] {
            let error = decode(&Bytes::copy_from_slice(bytes)).unwrap_err().to_string();
            assert!(error.contains(word), "{bytes:x?}: {error}");
        }
    }
}
