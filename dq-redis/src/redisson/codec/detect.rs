//! Detects which codec wrote an unreadable payload: the error names the codec to choose.

use dq_core::Error;

use super::error::codec_error;
use super::json_tree::is_json;

pub(super) fn wrong_codec(codec: &str, bytes: &[u8]) -> Error {
    let (found, remedy) = detect(codec, bytes);
    codec_error(
        format!("the payload was not written by Redisson's codec for `{codec}`: {found}"),
        remedy,
    )
}

const CHANGE_JAVA: &str = "only Java can read it; let the Java clients use TypedJsonJacksonCodec, \
     and choose the codec `json` here";

fn is_text(text: &str) -> bool {
    text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'))
}

/// Returns a guess at the format, and the remedy.
fn detect(codec: &str, bytes: &[u8]) -> (&'static str, &'static str) {
    match bytes {
        [] => ("it is empty", "choose the codec `string`, or `raw` to handle it yourself"),
        [0xac, 0xed, ..] => ("it is Java serialization (SerializationCodec)", CHANGE_JAVA),
        [b'{', rest @ ..] if is_json(bytes) => {
            if rest.trim_ascii_start().starts_with(b"\"@class\"") {
                ("it is JSON with names of Java classes (JsonJacksonCodec)", "choose `jackson`")
            } else {
                ("it is JSON", "choose the codec `json`")
            }
        }
        [b'[' | b'"', ..] if is_json(bytes) => {
            ("it is JSON", "choose the codec `json`, or `jackson` if it names Java classes")
        }
        [0x01, 0x00, b'[', 0xc2, ..] if codec != "kryo5" => {
            ("it looks like a byte[] of Kryo5Codec", "choose the codec `kryo5`")
        }
        [0x01, 0x00, ..] => ("it is an object of a Java class (Kryo5Codec)", CHANGE_JAVA),
        // Kryo writes a Float as this byte and four more; JBoss Marshalling writes its version.
        [0x04, rest @ ..] if rest.len() != 4 => {
            ("it looks like JBoss Marshalling (MarshallingCodec)", CHANGE_JAVA)
        }
        [0x02..=0x0a, ..] if codec == "kryo5" => {
            ("it is not a plain value, or it is damaged", "choose `raw` and decode it yourself")
        }
        [0x02 | 0x03 | 0x05 | 0x09 | 0x0a, ..] => {
            ("it looks like a plain value of Kryo5Codec", "choose the codec `kryo5`")
        }
        // Text is tried before FST, whose tags also begin UTF-8 characters.
        _ if std::str::from_utf8(bytes).is_ok_and(is_text) => {
            ("it is text", "choose the codec `string`")
        }
        // FST's tags: 0 for an object, and -19 to -1 for null, strings, numbers and arrays.
        [0x00 | 0xed..=0xff, ..] => ("it looks like the format of FstCodec", CHANGE_JAVA),
        _ => ("its format is unknown", "choose the codec `raw` and decode it yourself"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_names_the_codec_that_reads_the_bytes() {
        for text in ["plain", "확인", "（订单）", "😀", "two\nlines"] {
            assert_eq!(detect("json", text.as_bytes()).1, "choose the codec `string`", "{text}");
        }
        let bytes = b"\x01\0[\xc2\x04\0h\xff";
        assert_eq!(detect("json", bytes).1, "choose the codec `kryo5`");
        assert_eq!(detect("kryo5", bytes).1, CHANGE_JAVA, "an object");
        assert_eq!(detect("json", b"\xff\x01").1, CHANGE_JAVA, "FST");
    }
}
