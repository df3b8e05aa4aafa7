//! Java values and codecs, with their names in the protocol.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A value with its Java type, which decides how it is encoded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "value", rename_all = "lowercase")]
pub(crate) enum Value {
    /// `String`.
    String(String),
    /// `Long`.
    Long(i64),
    /// `Integer`.
    Int(i32),
    /// `Boolean`.
    Bool(bool),
    /// `Double`, finite.
    Double(f64),
    /// `java.util.Date`, in ms since 1970.
    Date(i64),
    /// `byte[]`.
    #[serde(with = "hex")]
    Bytes(Vec<u8>),
    /// `interop.Order`.
    Order(Order),
    /// `HashMap<String, Object>`, or any other map when read.
    Map(BTreeMap<String, Value>),
    /// `ArrayList<Object>`, or any other list when read.
    List(Vec<Value>),
    /// A value of another type that was read: its class and text.
    Other(String),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

/// The fields of `interop.Order`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) id: i64,
    pub(crate) amount: f64,
    pub(crate) note: Option<String>,
    /// In ms since 1970.
    pub(crate) created: Option<i64>,
    pub(crate) tags: Option<Vec<String>>,
}

/// A codec of Redisson.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Codec {
    /// The client's default: `MarshallingCodec` before 3.19, then `Kryo5Codec`.
    Default,
    /// `StringCodec`.
    String,
    /// `ByteArrayCodec`.
    Bytes,
    /// `JsonJacksonCodec`.
    Jackson,
    /// `TypedJsonJacksonCodec` of a class.
    TypedJson(Type),
    /// `Kryo5Codec`.
    Kryo5,
}

/// The class of a codec for a single class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    /// `interop.Order`.
    Order,
    /// `HashMap`.
    Map,
    /// `String`.
    String,
    /// `Long`.
    Long,
}

impl Codec {
    /// The name in the protocol and in `golden.txt`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Jackson => "jackson",
            Self::TypedJson(Type::Order) => "typed-json:order",
            Self::TypedJson(Type::Map) => "typed-json:map",
            Self::TypedJson(Type::String) => "typed-json:string",
            Self::TypedJson(Type::Long) => "typed-json:long",
            Self::Kryo5 => "kryo5",
        }
    }
}

/// Bytes as hexadecimal text in JSON.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        text.as_bytes()
            .chunks(2)
            .map(|pair| {
                let pair = std::str::from_utf8(pair).map_err(D::Error::custom)?;
                u8::from_str_radix(pair, 16).map_err(D::Error::custom)
            })
            .collect()
    }
}
