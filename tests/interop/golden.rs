//! Checks that `golden.txt` has the bytes written by real Redisson clients, or rewrites the file.
//!
//! dq-redis tests its codecs against it (`dq-redis/src/redisson/golden.rs`).

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use dq_servers::Redis;

use crate::peer::{Codec, JsonClass, Order, Peer, Value, Version};

const UPDATE: &str = "DQ_INTEROP_GOLDEN=write cargo test -p dq-tests --test interop golden";

const KEY: &str = "redisson_delay_queue_timeout:{golden}";

#[tokio::test]
async fn redisson_still_writes_the_golden_bytes() {
    let mut lines = vec![];
    for version in Version::ALL {
        add_lines(version, &mut lines).await;
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/golden.txt");
    let text = std::fs::read_to_string(&file).unwrap();
    let (head, kept): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with('#'));
    if std::env::var_os("DQ_INTEROP_GOLDEN").is_some_and(|value| value == "write") {
        let text = format!("{}\n{}\n", head.join("\n"), lines.join("\n"));
        std::fs::write(&file, text).unwrap();
        return;
    }
    let differing: Vec<_> =
        kept.iter().copied().zip(&lines).filter(|(kept, measured)| kept != measured).collect();
    assert!(differing.is_empty(), "{differing:#?}\nupdate the file: {UPDATE}");
    assert_eq!(kept.len(), lines.len(), "update the file: {UPDATE}");
}

async fn add_lines(version: Version, lines: &mut Vec<String>) {
    let redis = Redis::start();
    let peer = Peer::start(version, redis.port()).await;
    for (codec, values) in cases() {
        let queue = peer.queue("golden", codec);
        queue.open().await;
        for value in values {
            queue.offer(&value, Duration::from_secs(3600)).await;
            let members = redis.command(&["ZRANGE", KEY, "0", "-1"]);
            let [member] = members.list() else { panic!("one value, but {members:?}") };
            let member = masked(version, member.bytes());
            let read = queue.ask::<Vec<Value>>("delayed_values").await.remove(0);
            let read = if read == value { "=".to_owned() } else { json(&read) };
            let value = json(&value);
            lines.push(format!("{version}\t{}\t{value}\t{member}\t{read}", codec.name()));
            queue.ask::<bool>("delayed_delete").await;
        }
        queue.ask::<()>("destroy").await;
    }
}

fn json(value: &Value) -> String {
    serde_json::to_string(value).unwrap()
}

/// The member in hex, without its random id.
fn masked(version: Version, member: &[u8]) -> String {
    let id = if version.has_legacy_members() { 0..8 } else { 1..9 };
    let mut text = String::new();
    for (place, byte) in member.iter().enumerate() {
        if id.contains(&place) {
            text.push_str("__");
        } else {
            write!(text, "{byte:02x}").unwrap();
        }
    }
    text
}

fn cases() -> Vec<(Codec, Vec<Value>)> {
    let every: Vec<Value> =
        [texts(), numbers(), raw_bytes(), orders(), containers()].into_iter().flatten().collect();
    vec![
        (Codec::String, [texts(), numbers()].concat()),
        (Codec::Bytes, raw_bytes()),
        (Codec::Jackson, every.clone()),
        (Codec::TypedJson(JsonClass::Order), orders()),
        (Codec::TypedJson(JsonClass::Map), containers().into_iter().filter(is_map).collect()),
        (Codec::TypedJson(JsonClass::String), texts()),
        (Codec::TypedJson(JsonClass::Long), vec![Value::Long(42), Value::Long(i64::MIN)]),
        (Codec::Kryo5, every),
        (Codec::Default, vec!["hello".into(), Value::Long(42), Value::Int(42), Value::Bool(true)]),
    ]
}

/// Texts with special characters, and with lengths at which Kryo's format changes.
fn texts() -> Vec<Value> {
    let long = |length| "x".repeat(length);
    let mut texts: Vec<String> =
        ["", "a", "hello", "héllo", "é", "日本", "a😀b", "\"\\\n\t\0\u{7f}/", r#"{"k":1}"#]
            .map(str::to_owned)
            .into();
    texts.extend([32, 33, 40, 62, 63, 64].map(long));
    texts.push("é".repeat(63));
    texts.into_iter().map(Value::String).collect()
}

fn numbers() -> Vec<Value> {
    let longs = [0, 1, -1, 42, 63, 64, -65, 1_700_000_000_000, i64::MAX, i64::MIN];
    let ints = [0, 1, -1, 42, 64, i32::MAX, i32::MIN];
    let doubles = [0.0, -0.0, 0.1, 1.5, 100.0, 1e21, 1e-7, f64::MAX];
    let mut numbers: Vec<Value> = longs.map(Value::Long).into();
    numbers.extend(ints.map(Value::Int));
    numbers.extend([true, false].map(Value::Bool));
    numbers.extend(doubles.map(Value::Double));
    numbers
}

fn raw_bytes() -> Vec<Value> {
    let all = (0..=255).collect();
    [vec![], vec![0x00, 0xff, 0x10], b"text".to_vec(), all].map(Value::Bytes).into()
}

fn orders() -> Vec<Value> {
    let full = Order {
        id: 42,
        amount: 1.5,
        note: Some("soon, é".to_owned()),
        created: Some(1_700_000_000_000),
        tags: Some(vec!["a".to_owned(), "b".to_owned()]),
    };
    [full, Order::default()].map(Value::Order).into()
}

fn containers() -> Vec<Value> {
    let map = |entries: &[(&str, Value)]| {
        Value::Map(entries.iter().map(|(key, item)| ((*key).to_owned(), item.clone())).collect())
    };
    let inner = map(&[("deep", Value::Long(2))]);
    let list = Value::List(vec!["a".into(), Value::Long(1), Value::Int(2)]);
    let date = Value::Date(1_700_000_000_000);
    vec![
        map(&[]),
        map(&[("k", Value::Int(1))]),
        map(&[("zebra", "z".into()), ("long", Value::Long(7)), ("at", date.clone())]),
        map(&[("list", list.clone()), ("map", inner)]),
        list,
        Value::List(vec![]),
        date,
    ]
}

fn is_map(value: &Value) -> bool {
    matches!(value, Value::Map(_))
}
