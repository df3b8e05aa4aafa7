//! Tests members and codecs with values of real Redisson clients. A line of
//! `tests/interop/golden.txt` has the client's version, its codec, the typed value, and the member
//! in hex, with `_` in place of the random id.

use bytes::Bytes;
use dq_servers::shared_redis;
use serde_json::{Value, json};

use super::codec::Codec;
use super::member::{Format, parse_as};
use super::member_test::eval;

const LINES: &str = include_str!("../../../tests/interop/golden.txt");

/// The clients ran against a 64-bit server.
const LENGTH_BYTES: usize = 8;

struct Golden<'a> {
    version: &'a str,
    codec: &'a str,
    java_type: String,
    value: Value,
    member: Vec<u8>,
}

impl Golden<'_> {
    fn all() -> Vec<Golden<'static>> {
        let lines = LINES.lines().filter(|line| !line.starts_with('#'));
        let read = |line: &'static str| {
            let columns: Vec<&str> = line.split('\t').collect();
            let typed_value: Value = serde_json::from_str(columns[2]).unwrap();
            Golden {
                version: columns[0],
                codec: columns[1],
                java_type: typed_value["type"].as_str().unwrap().to_owned(),
                value: untyped(&typed_value),
                member: bytes_of(&columns[3].replace('_', "9")),
            }
        };
        lines.map(read).collect()
    }

    fn format(&self) -> Format {
        match self.version {
            "3.16.6" | "3.20.1" => Format::Legacy,
            _ => Format::Current,
        }
    }

    /// `None` if this crate has no such codec.
    fn codec(&self) -> Option<Codec> {
        let class = match (self.codec, self.java_type.as_str()) {
            (_, "int") => Some("java.lang.Integer".to_owned()),
            ("kryo5", "bytes") => Some("byte[]".to_owned()),
            (_, "order") => Some("interop.Order".to_owned()),
            (_, "map") => Some("java.util.HashMap".to_owned()),
            _ => None,
        };
        Some(match (self.codec, self.version) {
            ("string", _) => Codec::Text,
            ("bytes", _) => Codec::Raw,
            ("jackson", _) => Codec::Jackson { class },
            ("default", "3.16.6") => return None,
            ("kryo5" | "default", _) => Codec::Kryo5 { class },
            (typed, _) if typed.starts_with("typed-json:") => Codec::Json,
            (other, _) => panic!("a codec unknown to this test: {other}"),
        })
    }

    fn payload(&self) -> Bytes {
        Bytes::copy_from_slice(parse_as(self.format(), LENGTH_BYTES, &self.member).unwrap())
    }

    fn is_object(&self) -> bool {
        matches!(self.java_type.as_str(), "order" | "map" | "list" | "date")
    }

    fn name(&self) -> String {
        format!("{} {} {} {}", self.version, self.codec, self.java_type, self.value)
    }
}

/// The value as a handler sees it: without types and null fields.
fn untyped(typed: &Value) -> Value {
    match (typed["type"].as_str(), &typed["value"]) {
        (Some("bytes"), hex) => json!(bytes_of(hex.as_str().unwrap())),
        (Some("list"), Value::Array(items)) => items.iter().map(untyped).collect(),
        (Some("map"), Value::Object(fields)) => {
            fields.iter().map(|(name, value)| (name.clone(), untyped(value))).collect()
        }
        (_, Value::Object(fields)) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            fields.map(|(name, value)| (name.clone(), value.clone())).collect()
        }
        (_, value) => value.clone(),
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let byte = |offset| u8::from_str_radix(&hex[offset..offset + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn parsed(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap()
}

#[test]
fn members_are_packed_as_redisson_packs_them() {
    const BODY: &str = "local format, member_id, payload = parse(ARGV[1])
        return { format, pack_member(member_id, payload), payload }";
    let mut redis = shared_redis().connect();
    for line in Golden::all() {
        let answer = eval(&mut redis, line.format(), BODY, &[&line.member]);
        let format = format!("{:?}", line.format()).to_lowercase();
        assert_eq!(answer[0].text(), format, "{}", line.name());
        assert_eq!(answer[1].bytes(), line.member, "{}", line.name());
        assert_eq!(answer[2].bytes(), line.payload(), "{}", line.name());
    }
}

#[test]
fn payloads_from_redisson_are_decoded() {
    for line in Golden::all() {
        let Some(codec) = line.codec() else { continue };
        let answer = codec.decode(&line.payload());
        match codec {
            Codec::Kryo5 { .. } if line.is_object() => {
                let error = answer.unwrap_err().to_string();
                assert!(error.contains("Java class") && error.contains("`json`"), "{error}");
            }
            Codec::Raw => assert_eq!(json!(answer.unwrap().to_vec()), line.value),
            Codec::Text if line.java_type != "string" => {
                assert!(parsed(&answer.unwrap()).is_string())
            }
            // Jackson writes a byte[] in base64, without its type.
            Codec::Jackson { .. } if line.java_type == "bytes" => {
                assert!(parsed(&answer.unwrap()).is_string());
            }
            _ => assert_eq!(parsed(&answer.unwrap()), line.value, "{}", line.name()),
        }
    }
}

#[test]
fn payloads_are_encoded_as_by_redisson() {
    for line in Golden::all() {
        let Some(codec) = line.codec() else { continue };
        if matches!(codec, Codec::Kryo5 { .. }) && line.is_object() {
            continue;
        }
        let payload = line.payload();
        let is_jackson = matches!(codec, Codec::Jackson { .. });
        // JSON shows only these types. To write others, the application names their classes.
        let is_plain = matches!(line.java_type.as_str(), "string" | "int" | "bool" | "double");
        let names_classes = is_jackson && !is_plain;
        let json = if names_classes { payload.clone() } else { codec.decode(&payload).unwrap() };
        let encoded = codec.encode(&json).unwrap();
        if is_jackson {
            assert_eq!(parsed(&encoded), parsed(&payload), "{}", line.name());
        } else {
            assert_eq!(encoded, payload, "{}", line.name());
        }
    }
}

#[test]
fn payloads_of_the_former_default_codec_are_recognized_but_not_decoded() {
    let mut seen = 0;
    for line in Golden::all().iter().filter(|line| line.codec().is_none()) {
        seen += 1;
        for codec in ["json", "jackson", "kryo5"] {
            let codec: Codec = codec.parse().unwrap();
            let error = codec.decode(&line.payload()).unwrap_err().to_string();
            assert!(error.contains("MarshallingCodec"), "{}: {error}", line.name());
        }
    }
    // Redisson 3.16.6, with MarshallingCodec as its default.
    assert_eq!(seen, 4);
}
