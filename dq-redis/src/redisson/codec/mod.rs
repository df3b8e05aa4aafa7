//! Codecs for Redisson payloads. Every codec except `raw` translates between the handlers' JSON and
//! the Java codec's bytes.

mod detect;
mod error;
mod jackson;
mod java_class;
mod json_tree;
mod kryo5;
mod kryo5_text;
mod name;
mod plain;

use bytes::Bytes;
use dq_core::Result;

/// The codec that the Java clients of a Redisson queue use.
///
/// In settings, write its name, for some codecs with a class: `"jackson:com.example.Order"`.
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
    /// `"raw"`: bytes pass unchanged, for `ByteArrayCodec` or your own codec on both sides.
    #[default]
    Raw,
    /// `"string"`: `StringCodec` with plain text. Handlers read a JSON string.
    Text,
    /// `"json"`: JSON passes unchanged, for `TypedJsonJacksonCodec` or JSON in a `StringCodec`.
    Json,
    /// `"jackson"`: `JsonJacksonCodec`, JSON with Java class names. Handlers read it without them.
    Jackson {
        /// The class for written objects, such as `com.example.Order`. You need none for reading,
        /// or for writing arrays and plain values.
        class: Option<String>,
    },
    /// `"kryo5"`: `Kryo5Codec`, the default of Redisson 3.19 and newer, for strings, numbers,
    /// booleans and `byte[]`. It cannot read objects of Java classes.
    Kryo5 {
        /// The class for every written payload: `java.lang.Integer`, `Long`, `Double`, `Boolean`,
        /// `String` or `byte[]` (in JSON a list of numbers from 0 to 255). A payload that does not
        /// fit is refused. Without a class, integers become `java.lang.Long`, other numbers
        /// `java.lang.Double`; strings and booleans keep their type, and lists are refused.
        class: Option<String>,
    },
}

impl Codec {
    /// Translates your payload to bytes for the Java codec.
    ///
    /// # Errors
    /// `Codec` if this codec cannot write the payload; the error names the codec or setting to
    /// choose.
    pub fn encode(&self, payload: &Bytes) -> Result<Bytes> {
        match self {
            Self::Raw => Ok(payload.clone()),
            Self::Text => plain::encode_string(payload),
            Self::Json => plain::encode_json(payload),
            Self::Jackson { class } => jackson::encode(payload, class.as_deref()),
            Self::Kryo5 { class } => kryo5::encode(payload, class.as_deref()),
        }
        .map_err(|error| error.operation("encode for Redisson"))
    }

    /// Translates bytes from the Java codec to a payload for handlers.
    ///
    /// # Errors
    /// `Codec` if another codec wrote the bytes, or only Java can read them. The error says what
    /// the bytes look like and names the codec to choose.
    pub fn decode(&self, bytes: &Bytes) -> Result<Bytes> {
        match self {
            Self::Raw => Ok(bytes.clone()),
            Self::Text => plain::decode_string(bytes),
            Self::Json => plain::decode_json(bytes),
            Self::Jackson { .. } => jackson::decode(bytes),
            Self::Kryo5 { .. } => kryo5::decode(bytes),
        }
        .map_err(|error| error.operation("decode from Redisson"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // `golden.rs` tests payloads of real clients.
    #[test]
    fn text_and_json_pass_and_other_payloads_are_refused_with_the_codec_to_choose() {
        for (codec, java, json) in [
            (Codec::Text, "say \"hé\"\n", r#""say \"hé\"\n""#),
            (Codec::Text, "", "\"\""),
            (Codec::Text, "42", "\"42\""),
            (Codec::Json, r#"{"id":42, "created" : 1}"#, r#"{"id":42, "created" : 1}"#),
            (Codec::Json, "123456789012345678901234", "123456789012345678901234"),
        ] {
            let [java, json] = [java, json].map(|text| Bytes::from_static(text.as_bytes()));
            assert_eq!(codec.decode(&java).unwrap(), json, "{codec:?}");
            assert_eq!(codec.encode(&json).unwrap(), java, "{codec:?}");
        }

        let error = |answer: Result<Bytes>| {
            let error = answer.unwrap_err();
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
            error.to_string()
        };
        let bytes = Bytes::from_static;
        for json in [&b"{\"secret\":1}"[..], b"null", b"42"] {
            assert!(error(Codec::Text.encode(&bytes(json))).contains("`json`"));
        }
        assert!(error(Codec::Json.encode(&bytes(b"secret"))).contains("`raw`"));
        assert!(error(Codec::Json.decode(&bytes(b"secret"))).contains("`string`"));
        for codec in [Codec::Text, Codec::Json] {
            assert!(error(codec.decode(&bytes(b"\x03hell\xef"))).contains("`kryo5`"));
        }
    }
}
