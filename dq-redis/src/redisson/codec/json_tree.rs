//! JSON taken apart one level at a time, with everything below kept as the text that it is.
//!
//! So a number longer than any type of ours passes through unchanged, and fields keep their order.

use std::fmt;

use dq_core::Result;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::fault;
use super::string::quoted;

/// The key of an object's Java class.
pub(super) const CLASS: &str = "@class";

/// The text of a value, once it is known to be JSON.
pub(super) fn parse(bytes: &[u8]) -> serde_json::Result<&str> {
    serde_json::from_slice::<&RawValue>(bytes).map(RawValue::get)
}

/// Writes a list.
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

/// Writes an object, with its class, which is JSON already, in front.
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

/// The elements of a list.
pub(super) fn items(array: &str) -> Result<Vec<&RawValue>> {
    serde_json::from_str(array).map_err(unreadable)
}

/// The fields in their order; a map would sort them.
pub(super) fn fields(object: &str) -> Result<Vec<(String, &RawValue)>> {
    let Fields(fields) = serde_json::from_str(object).map_err(unreadable)?;
    Ok(fields)
}

/// Only a string with half a surrogate passes the first reading and fails the second.
fn unreadable(error: serde_json::Error) -> dq_core::Error {
    fault(
        "the payload is JSON with text that is not Unicode",
        "choose the codec `raw` and decode it yourself",
    )
    .source(error)
}

struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Each;

        impl<'de> Visitor<'de> for Each {
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

        deserializer.deserialize_map(Each)
    }
}
