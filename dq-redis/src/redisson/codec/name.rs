//! Parses a codec from a configuration file or a URL.

use std::fmt;
use std::str::FromStr;

use dq_core::{Error, ErrorKind, Result};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::java_class::is_class_name;
use super::{Codec, kryo5};

impl Codec {
    fn from_parts(name: &str, class: Option<String>) -> Result<Self> {
        let codec = match name {
            "raw" => Self::Raw,
            "string" => Self::Text,
            "json" => Self::Json,
            "jackson" => Self::Jackson { class: class.clone() },
            "kryo5" => Self::Kryo5 { class: class.clone() },
            _ => {
                return Err(refused(
                    format!("unknown codec {name:?}"),
                    "choose one of raw, string, json, jackson and kryo5",
                ));
            }
        };
        if class.is_some() && matches!(codec, Self::Raw | Self::Text | Self::Json) {
            return Err(refused(
                format!("the codec {name:?} takes no class"),
                "remove the class, or choose the codec `jackson` or `kryo5`",
            ));
        }
        match (&codec, class) {
            (Self::Jackson { .. }, Some(class)) if !is_class_name(&class) => Err(refused(
                format!("{class:?} is not the name of a Java class"),
                "write its full name, such as com.example.Order",
            )),
            (Self::Kryo5 { .. }, Some(class)) if !kryo5::can_write(&class) => Err(refused(
                format!("the codec \"kryo5\" cannot write a {class:?}"),
                "choose java.lang.Integer, Long, Double, Boolean, String or byte[]; for objects \
                 let the Java clients use TypedJsonJacksonCodec and choose the codec `json`",
            )),
            _ => Ok(codec),
        }
    }
}

fn refused(what: String, remedy: &'static str) -> Error {
    Error::new(ErrorKind::Config, what).remedy(remedy)
}

impl FromStr for Codec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some((name, class)) => Self::from_parts(name, Some(class.to_owned())),
            None => Self::from_parts(text, None),
        }
    }
}

impl<'de> Deserialize<'de> for Codec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NameOrTable)
    }
}

/// Accepts both forms. A visitor because errors of an untagged enum do not name the mistake.
struct NameOrTable;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    r#type: String,
    class: Option<String>,
}

impl<'de> Visitor<'de> for NameOrTable {
    type Value = Codec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a codec, or a table with `type` and `class`")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Codec, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Codec, A::Error> {
        let Table { r#type, class } = Table::deserialize(MapAccessDeserializer::new(map))?;
        Codec::from_parts(&r#type, class).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> serde_json::Result<Codec> {
        serde_json::from_str(json)
    }

    #[test]
    fn a_codec_is_a_name_or_a_table() {
        let class = || Some("com.example.Order".to_owned());
        for (json, codec) in [
            (r#""raw""#, Codec::Raw),
            (r#""string""#, Codec::Text),
            (r#""json""#, Codec::Json),
            (r#""jackson""#, Codec::Jackson { class: None }),
            (r#""jackson:com.example.Order""#, Codec::Jackson { class: class() }),
            (
                r#"{"type": "jackson", "class": "com.example.Order"}"#,
                Codec::Jackson { class: class() },
            ),
            (r#"{"type": "kryo5"}"#, Codec::Kryo5 { class: None }),
            (r#"{"type": "raw"}"#, Codec::Raw),
        ] {
            assert_eq!(read(json).unwrap(), codec, "{json}");
        }
        assert_eq!(Codec::default(), Codec::Raw);
    }

    #[test]
    fn invalid_codecs_are_named_in_the_error() {
        for (json, word) in [
            (r#""kryo""#, "kryo5"),
            (r#""json:com.example.Order""#, "takes no class"),
            (r#""jackson:""#, "com.example.Order"),
            (r#""jackson:order""#, "com.example.Order"),
            (r#""kryo5:com.example.Order""#, "TypedJsonJacksonCodec"),
            (r#"{"type": "jackson", "clas": "x"}"#, "clas"),
            (r#"{"class": "x"}"#, "type"),
            ("7", "the name of a codec"),
        ] {
            let error = read(json).unwrap_err().to_string();
            assert!(error.contains(word), "{json}: {error}");
        }
    }
}
