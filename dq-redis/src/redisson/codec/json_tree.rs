//! Parses JSON one level at a time; deeper levels stay text.
//!
//! Unlike with `serde_json::Value`, numbers of any length pass unchanged, and fields keep their
//! order.

use std::fmt;

use dq_core::Result;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::error::codec_error;

/// The field that holds the name of an object's Java class.
pub(super) const CLASS_FIELD: &str = "@class";

/// Checks that the bytes are JSON. Numbers may have any length.
pub(super) fn check(bytes: &[u8]) -> serde_json::Result<()> {
    serde_json::from_slice::<IgnoredAny>(bytes).map(drop)
}

/// Whether the bytes are JSON.
pub(super) fn is_json(bytes: &[u8]) -> bool {
    check(bytes).is_ok()
}

/// The text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The text of a JSON value.
pub(super) fn parse(bytes: &[u8]) -> serde_json::Result<&str> {
    serde_json::from_slice::<&RawValue>(bytes).map(RawValue::get)
}

/// Writes an array, with `each` for the elements.
pub(super) fn array(
    items: &[&RawValue],
    out: &mut String,
    mut each: impl FnMut(&str, &mut String) -> Result<()>,
) -> Result<()> {
    out.push('[');
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        each(item.get(), out)?;
    }
    out.push(']');
    Ok(())
}

/// Writes an object, with `each` for the fields' values and `class`, a JSON string, as its first
/// field.
pub(super) fn object<'a>(
    class: Option<String>,
    fields: impl Iterator<Item = &'a (String, &'a RawValue)>,
    out: &mut String,
    mut each: impl FnMut(&str, &mut String) -> Result<()>,
) -> Result<()> {
    out.push('{');
    if let Some(class) = &class {
        out.push_str("\"@class\":");
        out.push_str(class);
    }
    for (at, (name, value)) in fields.enumerate() {
        if at > 0 || class.is_some() {
            out.push(',');
        }
        out.push_str(&quoted(name));
        out.push(':');
        each(value.get(), out)?;
    }
    out.push('}');
    Ok(())
}

/// The elements of an array.
pub(super) fn items(array: &str) -> Result<Vec<&RawValue>> {
    serde_json::from_str(array).map_err(unreadable)
}

/// The fields of an object in their order, which a map would not keep.
pub(super) fn fields(object: &str) -> Result<Vec<(String, &RawValue)>> {
    let Fields(fields) = serde_json::from_str(object).map_err(unreadable)?;
    Ok(fields)
}

/// The error for JSON that [`parse`] accepts but [`items`] or [`fields`] does not: only a string
/// with an unpaired surrogate.
fn unreadable(error: serde_json::Error) -> dq_core::Error {
    codec_error(
        "the payload is JSON with text that is not valid Unicode",
        "choose the codec `raw` and decode it yourself",
    )
    .source(error)
}

struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct FieldsVisitor;

        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(FieldsVisitor)
    }
}
