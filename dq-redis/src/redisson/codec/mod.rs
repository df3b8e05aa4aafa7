//! Codecs for the payloads of a Redisson queue.
//!
//! Handlers read JSON, so every codec except `raw` translates between JSON text and the bytes that
//! the Java codec of that name writes.

mod detect;
mod error;
mod jackson;
mod java_class;
mod json;
mod json_tree;
mod kryo5;
mod kryo5_text;
mod name;
mod string;

use bytes::Bytes;
use dq_core::Result;

/// The codec that the Java clients of a Redisson queue use.
///
/// In settings it is a name, for some codecs followed by a class: `"json"`,
/// `"jackson:com.example.Order"`; or a table: `{ type = "jackson", class = "com.example.Order" }`.
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
    /// `"raw"`: bytes pass unchanged, for `ByteArrayCodec` or a codec of the application on both
    /// sides.
    #[default]
    Raw,
    /// `"string"`: `StringCodec` with plain text, which handlers read as a JSON string.
    Text,
    /// `"json"`: JSON text passes unchanged, for `TypedJsonJacksonCodec` and for JSON in the
    /// strings of a `StringCodec`.
    Json,
    /// `"jackson"`: `JsonJacksonCodec`, which adds names of Java classes to its JSON. Handlers read
    /// it without them.
    Jackson {
        /// The class of the objects that are written, such as `com.example.Order`. Reading, and
        /// writing arrays and plain values, does not need it.
        class: Option<String>,
    },
    /// `"kryo5"`: `Kryo5Codec`, the default of Redisson 3.19 and newer, for strings, numbers,
    /// booleans and `byte[]`. Objects of Java classes cannot be read.
    Kryo5 {
        /// The class that each payload is written as: `java.lang.Integer`, `Long`, `Double`, `Boolean`,
        /// `String` or `byte[]`, in JSON a list of numbers from 0 to 255. A payload that does not fit
        /// is refused. Without a class, strings and booleans are written as such, integers as
        /// `java.lang.Long`, other numbers as `java.lang.Double`, and lists are refused.
        class: Option<String>,
    },
}

impl Codec {
    /// Translates a payload of this application to the bytes that the Java codec reads.
    ///
    /// # Errors
    /// `Codec` if this codec cannot write the payload; the error names the codec or setting to
    /// choose.
    pub fn encode(&self, payload: &Bytes) -> Result<Bytes> {
        match self {
            Self::Raw => Ok(payload.clone()),
            Self::Text => string::encode(payload),
            Self::Json => json::encode(payload),
            Self::Jackson { class } => jackson::encode(payload, class.as_deref()),
            Self::Kryo5 { class } => kryo5::encode(payload, class.as_deref()),
        }
        .map_err(|error| error.operation("encode for Redisson"))
    }

    /// Translates bytes that the Java codec wrote to the payload that a handler decodes.
    ///
    /// # Errors
    /// `Codec` if another codec wrote the bytes, or they can only be read with the Java classes;
    /// the error says what the bytes look like and names the codec to choose.
    pub fn decode(&self, bytes: &Bytes) -> Result<Bytes> {
        match self {
            Self::Raw => Ok(bytes.clone()),
            Self::Text => string::decode(bytes),
            Self::Json => json::decode(bytes),
            Self::Jackson { .. } => jackson::decode(bytes),
            Self::Kryo5 { .. } => kryo5::decode(bytes),
        }
        .map_err(|error| error.operation("decode from Redisson"))
    }
}
