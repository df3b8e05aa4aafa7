//! `JsonJacksonCodec`: JSON in which Jackson's default typing has put the names of Java classes.
//!
//! An object carries its class under `@class`; whatever JSON cannot tell from its like (lists,
//! dates, long integers where no field is declared) stands as a pair `["java.lang.Long", 42]`.
//! Reading takes both away. Writing puts them where Jackson insists on them; what is typed already
//! is left as it is, so an application can name any class itself.
//!
//! A pair is known by its first element, which must look like a Java class by Java's conventions:
//! packages, then a name with a capital. A list of two strings of which the first looks so by chance
//! is the one thing that this takes wrongly, and only where Jackson left out the pair around the
//! list.

use bytes::Bytes;
use dq_core::Result;
use serde_json::value::RawValue;

use super::java_class::is_class;
use super::json_tree::{CLASS, array, fields, items, object, parse};
use super::string::quoted;
use super::{fault, sniff};

/// The class that lists are written as.
const LIST: &str = "java.util.ArrayList";

/// How deep a payload may be nested, as everywhere in serde_json.
const DEPTH: usize = 128;

/// Takes the class names out.
pub(super) fn decode(bytes: &Bytes) -> Result<Bytes> {
    let value = parse(bytes).map_err(|error| sniff::unlike("jackson", bytes).source(error))?;
    let mut out = String::with_capacity(bytes.len());
    strip(value, &mut out, DEPTH)?;
    Ok(out.into())
}

/// Puts class names in: `class` for the outermost object.
pub(super) fn encode(payload: &Bytes, class: Option<&str>) -> Result<Bytes> {
    let value = parse(payload).map_err(|error| {
        fault(
            format!("the payload is not JSON: {error}"),
            "give it to Redisson as it is with the codec `raw`",
        )
    })?;
    let mut out = String::with_capacity(payload.len() + 64);
    write(value, Place::Top { class }, &mut out, DEPTH)?;
    Ok(out.into())
}

fn strip(value: &str, out: &mut String, depth: usize) -> Result<()> {
    let depth = deeper(depth)?;
    match value.as_bytes().first() {
        Some(b'{') => {
            let fields = fields(value)?;
            let fields = fields.iter().filter(|(name, _)| name != CLASS);
            object(None, fields, out, |value, out| strip(value, out, depth))
        }
        Some(b'[') => {
            let pair_or_list = items(value)?;
            let strip = |item: &str, out: &mut String| strip(item, out, depth);
            match as_pair(&pair_or_list) {
                // The elements of a typed list are no pair, whatever they look like.
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

/// Where a value stands, which decides what Jackson must be told of it.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// The payload itself.
    Top { class: Option<&'a str> },
    /// In a field, whose declared type says what a number is.
    Field,
    /// In a list of anything.
    Element,
}

fn write(value: &str, place: Place<'_>, out: &mut String, depth: usize) -> Result<()> {
    let depth = deeper(depth)?;
    match value.as_bytes().first() {
        Some(b'{') => {
            let fields = fields(value)?;
            let own = fields.iter().find(|(name, _)| name == CLASS).map(|(_, class)| class.get());
            let class = match (own, place) {
                (Some(class), _) => class.to_owned(),
                (None, Place::Top { class: Some(class) }) => quoted(class),
                (None, Place::Top { class: None }) => {
                    return Err(fault(
                        "the payload is an object, and `jackson` was given no class for it",
                        "name it, like `jackson:com.example.Order`",
                    ));
                }
                (None, Place::Field | Place::Element) => {
                    return Err(fault(
                        "the payload has an object inside whose Java class is not known",
                        "give it a field \"@class\", or let the Java clients use \
                         TypedJsonJacksonCodec and choose the codec `json`",
                    ));
                }
            };
            let fields = fields.iter().filter(|(name, _)| name != CLASS);
            object(Some(class), fields, out, |value, out| write(value, Place::Field, out, depth))
        }
        Some(b'[') => {
            let pair_or_list = items(value)?;
            let element = |item: &str, out: &mut String| write(item, Place::Element, out, depth);
            match as_pair(&pair_or_list) {
                Some((class, list)) if list.starts_with('[') => {
                    typed(class, out, |out| array(&items(list)?, out, element))
                }
                Some((class, value)) => {
                    typed(class, out, |out| write(value, Place::Field, out, depth))
                }
                None => typed(&quoted(LIST), out, |out| array(&pair_or_list, out, element)),
            }
        }
        Some(b'-' | b'0'..=b'9') if !matches!(place, Place::Field) && is_long(value) => {
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

/// Bounds the recursion, and with it the stack.
fn deeper(depth: usize) -> Result<usize> {
    depth.checked_sub(1).ok_or_else(|| {
        fault(
            format!("the payload is nested deeper than {DEPTH} levels"),
            "choose the codec `raw` and decode it yourself",
        )
    })
}

/// Whether Jackson, not told otherwise, would not take this number for an `Integer`.
fn is_long(number: &str) -> bool {
    number.parse::<i64>().is_ok_and(|number| i32::try_from(number).is_err())
}

/// The class, as JSON, and the value of `["java.util.Date", 1700000000000]`.
fn as_pair<'a>(items: &[&'a RawValue]) -> Option<(&'a str, &'a str)> {
    let [class, value] = items else { return None };
    let name = serde_json::from_str::<String>(class.get()).ok()?;
    is_class(&name).then(|| (class.get(), value.get()))
}

/// `[class,value]`
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

    #[test]
    fn class_names_are_taken_out() {
        // What JsonJacksonCodec writes with Jackson 2.14.
        for (java, json) in [
            (r#""hello""#, r#""hello""#),
            (r#"["java.lang.Long",42]"#, "42"),
            ("42", "42"),
            ("true", "true"),
            ("1.5", "1.5"),
            (r#"{"@class":"java.util.HashMap","k":1}"#, r#"{"k":1}"#),
            (
                r#"{"@class":"pkg.Order","amount":1.5,"created":["java.util.Date",1700000000000],"id":42}"#,
                r#"{"amount":1.5,"created":1700000000000,"id":42}"#,
            ),
            (r#"["java.util.ArrayList",["a",["java.lang.Long",1]]]"#, r#"["a",1]"#),
            (r#"["[B","aGVsbG8="]"#, r#""aGVsbG8=""#),
            // A field of type String[], which is final, and one of int[].
            (r#"{"@class":"a.B","s":["x","y"],"i":[1,2]}"#, r#"{"s":["x","y"],"i":[1,2]}"#),
            // Objects in a list, lists in a list.
            (
                r#"["java.util.ArrayList",[{"@class":"a.B","n":["java.util.ArrayList",[]]}]]"#,
                r#"[{"n":[]}]"#,
            ),
            // A list whose first element happens to be the name of a class.
            (r#"["java.util.ArrayList",["java.lang.Long","x"]]"#, r#"["java.lang.Long","x"]"#),
            (r#"["java.math.BigInteger",123456789012345678901234]"#, "123456789012345678901234"),
        ] {
            assert_eq!(from_java(java), json);
        }
    }

    #[test]
    fn class_names_are_put_in_where_jackson_insists() {
        let order = Some("pkg.Order");
        for (json, java) in [
            (
                r#"{"id":42,"at":1700000000000}"#,
                r#"{"@class":"pkg.Order","id":42,"at":1700000000000}"#,
            ),
            ("{}", r#"{"@class":"pkg.Order"}"#),
            (r#"{"id":1,"@class":"pkg.Other"}"#, r#"{"@class":"pkg.Other","id":1}"#),
            (r#""hello""#, r#""hello""#),
            ("42", "42"),
            ("2147483648", r#"["java.lang.Long",2147483648]"#),
            ("-2147483649", r#"["java.lang.Long",-2147483649]"#),
            ("1.5", "1.5"),
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
            // Typed already.
            (
                r#"{"at":["java.util.Date",1700000000000],"ids":["java.util.HashSet",[3000000000]]}"#,
                r#"{"@class":"pkg.Order","at":["java.util.Date",1700000000000],"ids":["java.util.HashSet",[["java.lang.Long",3000000000]]]}"#,
            ),
        ] {
            assert_eq!(to_java(json, order), java);
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for json in [
            r#"{"id":42,"tags":["a","b"],"n":[1,3000000000],"x":null,"y":"\u00e9\n"}"#,
            "[[[]],[1.25,true]]",
        ] {
            let back = from_java(&to_java(json, Some("pkg.Order")));
            let value = |json: &str| serde_json::from_str::<serde_json::Value>(json).unwrap();
            assert_eq!(value(&back), value(json));
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
    fn depth_is_bounded_and_other_formats_are_named() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let error = decode(&deep.clone().into()).unwrap_err().to_string();
        assert!(error.contains("128"), "{error}");
        assert!(encode(&deep.into(), None).unwrap_err().to_string().contains("128"));
        let error = decode(&Bytes::from_static(b"\x03hell\xef")).unwrap_err().to_string();
        assert!(error.contains("`kryo5`"), "{error}");
    }
}
