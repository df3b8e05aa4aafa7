//! What stands in the payload of a Redisson queue: the codec that its Java clients chose.
//!
//! Handlers of this framework read JSON, so every codec but `raw` translates between JSON text and
//! what Java's codec of that name writes.

mod jackson;
mod java_class;
mod json;
mod json_tree;
mod kryo5;
mod kryo5_text;
mod name;
mod raw;
mod sniff;
mod string;

use bytes::Bytes;
use dq_core::{Error, ErrorKind, Result};

/// The codec of a Redisson queue, as its Java clients have it.
///
/// As a setting it is a name, with a class after a colon or beside it where it takes one:
/// `"json"`, `"jackson:com.example.Order"`, or `{ type = "jackson", class = "com.example.Order" }`.
///
/// ```
/// use dq_redis::Codec;
///
/// let codec: Codec = "kryo5:java.lang.Integer".parse().unwrap();
/// assert_eq!(codec, Codec::Kryo5 { class: Some("java.lang.Integer".to_owned()) });
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Codec {
    /// `"raw"`: bytes as they are, for `ByteArrayCodec` and for codecs of your own on both sides.
    #[default]
    Raw,
    /// `"string"`: `StringCodec` with plain text, which handlers see as a JSON string.
    Text,
    /// `"json"`: JSON text as it is, as `TypedJsonJacksonCodec` writes it, and as Java puts it into
    /// the strings of a `StringCodec`.
    Json,
    /// `"jackson"`: `JsonJacksonCodec`, which writes the names of Java classes into its JSON.
    /// Handlers see it without them.
    Jackson {
        /// The class of the objects that are written, such as `com.example.Order`. Not needed to
        /// read, nor to write arrays and plain values.
        class: Option<String>,
    },
    /// `"kryo5"`: `Kryo5Codec`, the default of Redisson 3.19 and newer, for strings, numbers,
    /// booleans and `byte[]`; objects of Java classes cannot be read.
    Kryo5 {
        /// The class of the numbers and arrays that are written: `java.lang.Integer`,
        /// `java.lang.Long`, `java.lang.Double` or `byte[]`. Unless set, integers are written as
        /// `java.lang.Long` and other numbers as `java.lang.Double`.
        class: Option<String>,
    },
}

impl Codec {
    /// From what this application encoded to what Java's codec reads.
    ///
    /// # Errors
    /// `Codec` if it is nothing that this codec can write, with the codec or setting to choose.
    pub fn encode(&self, payload: &Bytes) -> Result<Bytes> {
        match self {
            Self::Raw => Ok(raw::encode(payload)),
            Self::Text => string::encode(payload),
            Self::Json => json::encode(payload),
            Self::Jackson { class } => jackson::encode(payload, class.as_deref()),
            Self::Kryo5 { class } => kryo5::encode(payload, class.as_deref()),
        }
        .map_err(|error| error.operation("encode for Redisson"))
    }

    /// From what Java's codec wrote to what a handler of this framework decodes.
    ///
    /// # Errors
    /// `Codec` if it was not written by this codec, or is nothing that can be read without the
    /// Java classes: with what it looks like and the codec to choose.
    pub fn decode(&self, bytes: &Bytes) -> Result<Bytes> {
        match self {
            Self::Raw => Ok(raw::decode(bytes)),
            Self::Text => string::decode(bytes),
            Self::Json => json::decode(bytes),
            Self::Jackson { .. } => jackson::decode(bytes),
            Self::Kryo5 { .. } => kryo5::decode(bytes),
        }
        .map_err(|error| error.operation("decode from Redisson"))
    }
}

/// An error about a payload, which it must not show.
fn fault(what: impl Into<String>, remedy: impl Into<String>) -> Error {
    Error::new(ErrorKind::Codec, what.into()).remedy(remedy.into())
}
