//! Java values and codecs, with their protocol names.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A value with its Java type, which decides its encoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "value", rename_all = "lowercase")]
pub(crate) enum Value {
    String(String),
    Long(i64),
    /// `Integer`.
    Int(i32),
    Bool(bool),
    /// `Double`, finite.
    Double(f64),
    /// `java.util.Date`, in ms since 1970.
    Date(i64),
    #[serde(with = "hex")]
    Bytes(Vec<u8>),
    Order(Order),
    /// `HashMap<String, Object>`, or any other map when read.
    Map(BTreeMap<String, Value>),
    /// `ArrayList<Object>`, or any other list when read.
    List(Vec<Value>),
    /// A read value of another type, as text: its class, a space and its `toString()`.
    Other(String),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

/// The peers' sample entity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) id: i64,
    pub(crate) amount: f64,
    pub(crate) note: Option<String>,
    /// Milliseconds since 1970.
    pub(crate) created: Option<i64>,
    pub(crate) tags: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Codec {
    /// The client's default: `MarshallingCodec` before 3.19, then `Kryo5Codec`.
    Default,
    String,
    Bytes,
    Jackson,
    /// `TypedJsonJacksonCodec` for a class.
    TypedJson(JsonClass),
    Kryo5,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum JsonClass {
    Order,
    Map,
    String,
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
            Self::TypedJson(JsonClass::Order) => "typed-json:order",
            Self::TypedJson(JsonClass::Map) => "typed-json:map",
            Self::TypedJson(JsonClass::String) => "typed-json:string",
            Self::TypedJson(JsonClass::Long) => "typed-json:long",
            Self::Kryo5 => "kryo5",
        }
    }
}

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
