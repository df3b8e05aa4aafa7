//! Parses JSON one level at a time; deeper levels stay text. Unlike `serde_json::Value`, this keeps
//! numbers of any length and the field order.

use std::fmt;

use dq_core::Result;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::error::codec_error;

pub(super) const CLASS_FIELD: &str = "@class";

pub(super) fn check(bytes: &[u8]) -> serde_json::Result<()> {
    serde_json::from_slice::<IgnoredAny>(bytes).map(drop)
}

pub(super) fn is_json(bytes: &[u8]) -> bool {
    check(bytes).is_ok()
}

pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

pub(super) fn parse(bytes: &[u8]) -> serde_json::Result<&str> {
    serde_json::from_slice::<&RawValue>(bytes).map(RawValue::get)
}

pub(super) fn array(
    items: &[&RawValue],
    out: &mut String,
    mut each: impl FnMut(&str, &mut String) -> Result<()>,
) -> Result<()> {
    out.push('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        each(item.get(), out)?;
    }
    out.push(']');
    Ok(())
}

/// `class` is a JSON string.
pub(super) fn object<'a>(
    class: Option<String>,
    fields: impl Iterator<Item = &'a (String, &'a RawValue)>,
    out: &mut String,
    mut each: impl FnMut(&str, &mut String) -> Result<()>,
) -> Result<()> {
    out.push('{');
    if let Some(class) = &class {
        out.push_str(&quoted(CLASS_FIELD));
        out.push(':');
        out.push_str(class);
    }
    for (index, (name, value)) in fields.enumerate() {
        if index > 0 || class.is_some() {
            out.push(',');
        }
        out.push_str(&quoted(name));
        out.push(':');
        each(value.get(), out)?;
    }
    out.push('}');
    Ok(())
}

pub(super) fn items(array: &str) -> Result<Vec<&RawValue>> {
    serde_json::from_str(array).map_err(unreadable)
}

pub(super) fn fields(object: &str) -> Result<Vec<(String, &RawValue)>> {
    let Fields(fields) = serde_json::from_str(object).map_err(unreadable)?;
    Ok(fields)
}

/// [`parse`] accepts strings with an unpaired surrogate, [`items`] and [`fields`] do not.
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
