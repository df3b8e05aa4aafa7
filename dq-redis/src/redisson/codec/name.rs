//! Parses a codec from the text of a setting, such as `jackson:com.example.Order`.

use std::str::FromStr;

use dq_core::{Error, ErrorKind, Result};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::java_class::is_class_name;
use super::{Codec, kryo5};

impl FromStr for Codec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, class) = match text.split_once(':') {
            Some((name, class)) => (name, Some(class.to_owned())),
            None => (text, None),
        };
        match (name, class) {
            ("raw", None) => Ok(Self::Raw),
            ("string", None) => Ok(Self::Text),
            ("json", None) => Ok(Self::Json),
            ("raw" | "string" | "json", Some(_)) => Err(refused(
                format!("the codec {name:?} takes no class"),
                "remove the class, or choose the codec `jackson` or `kryo5`",
            )),
            ("jackson", Some(class)) if !is_class_name(&class) => Err(refused(
                format!("{class:?} is not the name of a Java class"),
                "write its full name, such as com.example.Order",
            )),
            ("jackson", class) => Ok(Self::Jackson { class }),
            ("kryo5", Some(class)) if !kryo5::can_write(&class) => Err(refused(
                format!("the codec \"kryo5\" cannot write a {class:?}"),
                "choose java.lang.Integer, Long, Double, Boolean, String or byte[]; for objects \
                 let the Java clients use TypedJsonJacksonCodec and choose the codec `json`",
            )),
            ("kryo5", class) => Ok(Self::Kryo5 { class }),
            _ => Err(refused(
                format!("unknown codec {name:?}"),
                "choose one of raw, string, json, jackson and kryo5",
            )),
        }
    }
}

fn refused(what: String, remedy: &'static str) -> Error {
    Error::new(ErrorKind::Config, what).remedy(remedy)
}

impl<'de> Deserialize<'de> for Codec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_codec_is_a_name_for_some_codecs_with_a_class() {
        let order = || Some("com.example.Order".to_owned());
        for (text, codec) in [
            ("raw", Codec::Raw),
            ("string", Codec::Text),
            ("json", Codec::Json),
            ("jackson", Codec::Jackson { class: None }),
            ("jackson:com.example.Order", Codec::Jackson { class: order() }),
            ("kryo5", Codec::Kryo5 { class: None }),
            ("kryo5:byte[]", Codec::Kryo5 { class: Some("byte[]".to_owned()) }),
        ] {
            assert_eq!(serde_json::from_value::<Codec>(text.into()).unwrap(), codec, "{text}");
        }
    }

    #[test]
    fn invalid_codecs_are_named_in_the_error() {
        for (text, word) in [
            ("kryo", "kryo5"),
            ("json:com.example.Order", "takes no class"),
            ("jackson:", "com.example.Order"),
            ("jackson:order", "com.example.Order"),
            ("kryo5:com.example.Order", "TypedJsonJacksonCodec"),
        ] {
            let error = serde_json::from_value::<Codec>(text.into()).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
