//! `JsonJacksonCodec`: JSON with Java class names from Jackson's default typing.
//!
//! An object has its class under `@class`. Values whose type JSON does not show (lists, dates, long
//! integers without a declared field) are pairs like `["java.lang.Long", 42]`. Decoding removes
//! both. Encoding adds them to objects, lists, and integers beyond 32 bits outside fields, where
//! the JSON alone shows the type. Encoding keeps class names in the payload, so an application can
//! name any class.
//!
//! A first element that looks like a Java class marks a pair. So a list of two strings without a
//! pair around it is mistaken for one if its first string looks like a class.

use bytes::Bytes;
use dq_core::Result;
use serde_json::value::RawValue;

use super::detect::wrong_codec;
use super::error::{codec_error, not_json};
use super::java_class::is_class_name;
use super::json_tree::{CLASS_FIELD, array, fields, items, object, parse, quoted};

const LIST: &str = "java.util.ArrayList";

/// The same as serde_json's limit.
const MAX_DEPTH: usize = 128;

pub(super) fn decode(bytes: &Bytes) -> Result<Bytes> {
    let value = parse(bytes).map_err(|error| wrong_codec("jackson", bytes).source(error))?;
    let mut out = String::with_capacity(bytes.len());
    strip(value, &mut out, MAX_DEPTH)?;
    Ok(out.into())
}

pub(super) fn encode(payload: &Bytes, class: Option<&str>) -> Result<Bytes> {
    let value = parse(payload).map_err(not_json)?;
    let mut out = String::with_capacity(payload.len() + 64);
    write(value, Position::Top { class }, &mut out, MAX_DEPTH)?;
    Ok(out.into())
}

fn strip(value: &str, out: &mut String, depth: usize) -> Result<()> {
    let depth = next_level(depth)?;
    match value.as_bytes().first() {
        Some(b'{') => {
            let fields = fields(value)?;
            let fields = fields.iter().filter(|(name, _)| name != CLASS_FIELD);
            object(None, fields, out, |value, out| strip(value, out, depth))
        }
        Some(b'[') => {
            let pair_or_list = items(value)?;
            let strip = |item: &str, out: &mut String| strip(item, out, depth);
            match as_pair(&pair_or_list) {
                // The elements of a typed list are never a pair.
                Some((_, list)) if list.starts_with('[') => array(&items(list)?, out, strip),
                Some((_, value)) => strip(value, out),
                None => array(&pair_or_list, out, strip),
            }
        }
        _ => {
            out.push_str(value);
            Ok(())
        }
    }
}

/// The position decides whether Jackson requires a type.
#[derive(Clone, Copy)]
enum Position<'a> {
    Top {
        class: Option<&'a str>,
    },
    /// A field of an object. A bare number fits a primitive or final type (`long`, `int`,
    /// `Integer`, `double`). For `Long`, `Date`, `BigDecimal` and other classes Redisson requires a
    /// pair, which only the application can write: `"id": ["java.lang.Long", 42]`.
    Field,
    Element,
}

fn write(value: &str, position: Position<'_>, out: &mut String, depth: usize) -> Result<()> {
    let depth = next_level(depth)?;
    match value.as_bytes().first() {
        Some(b'{') => {
            let fields = fields(value)?;
            let own =
                fields.iter().find(|(name, _)| name == CLASS_FIELD).map(|(_, class)| class.get());
            let class = match (own, position) {
                (Some(class), _) => class.to_owned(),
                (None, Position::Top { class: Some(class) }) => quoted(class),
                (None, Position::Top { class: None }) => {
                    return Err(codec_error(
                        "the payload is an object, and the codec `jackson` is set without a class",
                        "add its class, as in `jackson:com.example.Order`",
                    ));
                }
                (None, Position::Field | Position::Element) => {
                    return Err(codec_error(
                        "the payload contains an object without its Java class",
                        "add a field \"@class\" to it, or let the Java clients use \
                         TypedJsonJacksonCodec and choose the codec `json`",
                    ));
                }
            };
            let fields = fields.iter().filter(|(name, _)| name != CLASS_FIELD);
            object(Some(class), fields, out, |value, out| write(value, Position::Field, out, depth))
        }
        Some(b'[') => {
            let pair_or_list = items(value)?;
            let element = |item: &str, out: &mut String| write(item, Position::Element, out, depth);
            match as_pair(&pair_or_list) {
                Some((class, list)) if list.starts_with('[') => {
                    typed(class, out, |out| array(&items(list)?, out, element))
                }
                Some((class, value)) => {
                    typed(class, out, |out| write(value, Position::Field, out, depth))
                }
                None => typed(&quoted(LIST), out, |out| array(&pair_or_list, out, element)),
            }
        }
        Some(b'-' | b'0'..=b'9') if !matches!(position, Position::Field) && is_long(value) => {
            typed("\"java.lang.Long\"", out, |out| {
                out.push_str(value);
                Ok(())
            })
        }
        _ => {
            out.push_str(value);
            Ok(())
        }
    }
}

fn next_level(depth: usize) -> Result<usize> {
    depth.checked_sub(1).ok_or_else(|| {
        codec_error(
            format!("the payload is nested deeper than {MAX_DEPTH} levels"),
            "choose the codec `raw` and decode it yourself",
        )
    })
}

/// Whether Java writes this number as a `Long`. Java's `contains` and `remove` compare bytes.
fn is_long(number: &str) -> bool {
    number.parse::<i64>().is_ok_and(|number| i32::try_from(number).is_err())
}

/// Returns class (as JSON) and value of a pair like `["java.util.Date", 1700000000000]`.
fn as_pair<'a>(items: &[&'a RawValue]) -> Option<(&'a str, &'a str)> {
    let [class, value] = items else { return None };
    let name = serde_json::from_str::<String>(class.get()).ok()?;
    is_class_name(&name).then(|| (class.get(), value.get()))
}

fn typed(
    class: &str,
    out: &mut String,
    value: impl FnOnce(&mut String) -> Result<()>,
) -> Result<()> {
    out.push('[');
    out.push_str(class);
    out.push(',');
    value(out)?;
    out.push(']');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_java(json: &str, class: Option<&str>) -> String {
        let out = encode(&Bytes::copy_from_slice(json.as_bytes()), class).unwrap();
        String::from_utf8(out.into()).unwrap()
    }

    fn from_java(json: &str) -> String {
        let out = decode(&Bytes::copy_from_slice(json.as_bytes())).unwrap();
        String::from_utf8(out.into()).unwrap()
    }

    // `golden.rs` tests payloads of real clients.
    #[test]
    fn class_names_are_removed() {
        for (java, json) in [
            // The fields have the types String[], which is final, and int[].
            (r#"{"@class":"a.B","s":["x","y"],"i":[1,2]}"#, r#"{"s":["x","y"],"i":[1,2]}"#),
            // The first element of the list looks like a class.
            (r#"["java.util.ArrayList",["java.lang.Long","x"]]"#, r#"["java.lang.Long","x"]"#),
            (r#"["java.math.BigInteger",123456789012345678901234]"#, "123456789012345678901234"),
        ] {
            assert_eq!(from_java(java), json);
        }
    }

    #[test]
    fn class_names_are_added_where_jackson_requires_them() {
        let order = Some("pkg.Order");
        for (json, java) in [
            (
                r#"{"id":42,"at":1700000000000}"#,
                r#"{"@class":"pkg.Order","id":42,"at":1700000000000}"#,
            ),
            ("{}", r#"{"@class":"pkg.Order"}"#),
            (r#"{"id":1,"@class":"pkg.Other"}"#, r#"{"@class":"pkg.Other","id":1}"#),
            ("42", "42"),
            ("2147483648", r#"["java.lang.Long",2147483648]"#),
            ("-2147483649", r#"["java.lang.Long",-2147483649]"#),
            ("null", "null"),
            (
                r#"["a",1,3000000000]"#,
                r#"["java.util.ArrayList",["a",1,["java.lang.Long",3000000000]]]"#,
            ),
            (r#"[[]]"#, r#"["java.util.ArrayList",[["java.util.ArrayList",[]]]]"#),
            (
                r#"{"tags":["a"],"to":{"@class":"pkg.To","n":1}}"#,
                r#"{"@class":"pkg.Order","tags":["java.util.ArrayList",["a"]],"to":{"@class":"pkg.To","n":1}}"#,
            ),
            (
                r#"{"at":["java.util.Date",1700000000000],"ids":["java.util.HashSet",[3000000000]]}"#,
                r#"{"@class":"pkg.Order","at":["java.util.Date",1700000000000],"ids":["java.util.HashSet",[["java.lang.Long",3000000000]]]}"#,
            ),
        ] {
            assert_eq!(to_java(json, order), java);
        }
    }

    #[test]
    fn objects_without_a_class_are_refused() {
        let refused = |json: &'static str, class| {
            encode(&Bytes::from_static(json.as_bytes()), class).unwrap_err().to_string()
        };
        assert!(refused("{}", None).contains("jackson:com.example.Order"));
        for json in [r#"{"to":{"secret":1}}"#, "[{}]"] {
            let error = refused(json, Some("pkg.Order"));
            assert!(error.contains("\"@class\"") && error.contains("`json`"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn depth_is_bounded_and_other_codecs_are_named() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let error = decode(&deep.clone().into()).unwrap_err().to_string();
        assert!(error.contains("128"), "{error}");
        assert!(encode(&deep.into(), None).unwrap_err().to_string().contains("128"));
        let error = decode(&Bytes::from_static(b"\x03hell\xef")).unwrap_err().to_string();
        assert!(error.contains("`kryo5`"), "{error}");
    }
}
