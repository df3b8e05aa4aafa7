//! Java and Rust clients on one queue: values, sharing, visibility, takeover, foreign entries.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dq::ErrorKind;
use dq::backend::{Cancelled, Scheduled};
use dq_servers::Redis;
use serde_json::{Value as Json, json};

use crate::peer::{Codec, JsonClass, Order, Peer, Value, Version};
use crate::rust::{QUEUE, Rust, now_ms};

/// A delay within which both sides are ready.
const SOON: Duration = Duration::from_millis(300);
/// A delay that no test waits for.
const LATER: Duration = Duration::from_secs(3600);
const MAX_WAIT: Duration = Duration::from_secs(60);

crate::for_each_version! {
    every_value_goes_both_ways
    a_name_mapper_and_name_prefix_give_both_sides_one_queue
    both_consume_one_queue
    java_sees_our_jobs_with_exact_visibility
    rust_takes_over_when_java_dies
    another_format_is_refused_and_its_members_run
}

/// Java values, each with the JSON that a handler reads.
type Values = Vec<(Value, Json)>;

struct CodecCase {
    codec: Codec,
    /// The value of our option `codec`.
    option: &'static str,
    values: Values,
}

fn codecs() -> Vec<CodecCase> {
    let order = Value::Order(Order {
        id: 42,
        amount: 1.5,
        note: Some("über 😀".to_owned()),
        ..Order::default()
    });
    let seen = json!({"id": 42, "amount": 1.5, "note": "über 😀"});
    let scalars = || {
        vec![
            (Value::from("hello"), json!("hello")),
            (Value::from("订单 ☃"), json!("订单 ☃")),
            (Value::Long(1 << 40), json!(1_u64 << 40)),
            (Value::Bool(true), json!(true)),
        ]
    };
    let mut kryo = scalars();
    kryo.push((Value::from(""), json!("")));
    kryo.push((Value::from("x".repeat(100).as_str()), json!("x".repeat(100))));
    let mut jackson = scalars();
    jackson.push((order.clone(), seen.clone()));
    let text = vec![("plain text".into(), json!("plain text"))];
    let typed = vec![(order, seen)];
    vec![
        CodecCase { codec: Codec::String, option: "string", values: text },
        CodecCase { codec: Codec::TypedJson(JsonClass::Order), option: "json", values: typed },
        CodecCase { codec: Codec::Jackson, option: "jackson:interop.Order", values: jackson },
        CodecCase { codec: Codec::Kryo5, option: "kryo5", values: kryo },
    ]
}

/// All wanted fields are equal. Java adds null fields.
fn contains(found: &Json, wanted: &Json) -> bool {
    match (found, wanted) {
        (Json::Object(found), Json::Object(wanted)) => wanted
            .iter()
            .all(|(name, wanted)| found.get(name).is_some_and(|found| contains(found, wanted))),
        _ => found == wanted,
    }
}

async fn every_value_goes_both_ways(version: Version) {
    let redis = Redis::start();
    let peer = Peer::start(version, redis.port()).await;
    for CodecCase { codec, option, values } in codecs() {
        // Redisson sometimes fails to reopen a destroyed queue, so each codec has its own.
        let java = peer.queue(&format!("{}:{QUEUE}", codec.name()), codec);
        let options = format!("&codec={option}&name_prefix={}:", codec.name());
        let rust = Rust::connect(&redis, version, &options).await;

        java.open().await;
        for (value, _) in &values {
            java.offer(value, SOON).await;
        }
        let mut running = rust.run();
        let mut wanted: Vec<&Json> = values.iter().map(|(_, seen)| seen).collect();
        for _ in &values {
            let delivery = running.next(MAX_WAIT).await;
            assert!(delivery.at_ms >= delivery.due_ms, "{codec:?}: early");
            let index = wanted.iter().position(|wanted| contains(&delivery.payload, wanted));
            let index =
                index.unwrap_or_else(|| panic!("{codec:?}: {:?} of {wanted:?}", delivery.payload));
            wanted.remove(index);
        }
        assert!(running.stop().await.is_empty(), "{codec:?}: no job runs twice");

        let collector = java.collect(values.len()).await;
        let due = now_ms() + SOON.as_millis() as u64;
        for (_, seen) in &values {
            let _ = rust.schedule(seen.clone(), SOON).await;
        }
        let mut arrivals = collector.within(MAX_WAIT).await;
        for (value, _) in &values {
            let index = arrivals.iter().position(|arrival| arrival.value == *value);
            let index = index.unwrap_or_else(|| panic!("{codec:?}: {value:?} of {arrivals:?}"));
            let arrival = arrivals.remove(index);
            assert!(arrival.at_ms >= due, "{codec:?}: {value:?} was early");
        }
        assert!(arrivals.is_empty());
        assert_eq!(rust.queue().stats().await.unwrap().live(), 0);
    }
}

async fn a_name_mapper_and_name_prefix_give_both_sides_one_queue(version: Version) {
    let redis = Redis::start();
    let peer = Peer::start_with_prefix(version, redis.port(), Some("app:")).await;
    let java = peer.queue(QUEUE, Codec::String);
    let rust = Rust::connect(&redis, version, "&codec=string&name_prefix=app:").await;
    java.open().await;
    let _ = rust.schedule(json!("to java"), Duration::from_secs(5)).await;
    let waiting = format!("redisson_delay_queue_timeout:{{app:{QUEUE}}}");
    assert_eq!(redis.command(&["ZCARD", &waiting]).int(), 1);
    assert_eq!(java.take(MAX_WAIT).await, Some("to java".into()));

    java.offer(&"to rust".into(), SOON).await;
    let mut running = rust.run();
    assert_eq!(running.next(MAX_WAIT).await.payload, "to rust");
    running.stop().await;
}

async fn both_consume_one_queue(version: Version) {
    const EACH: usize = 60;
    for options in ["", "&java_visibility=exact"] {
        let redis = Redis::start();
        let peer = Peer::start(version, redis.port()).await;
        let java = peer.queue(QUEUE, Codec::String);
        let rust = Rust::connect(&redis, version, &format!("&codec=string{options}")).await;
        java.open().await;
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for n in 0..EACH {
            let delay = SOON + Duration::from_millis(n as u64 * 5);
            java.offer(&format!("java-{n}").as_str().into(), delay).await;
            let _ = rust.schedule(json!(format!("rust-{n}")), delay).await;
            counts.insert(format!("java-{n}"), 0);
            counts.insert(format!("rust-{n}"), 0);
        }
        // Java takes at most a third; Rust gets the rest. Either may get the payload added directly
        // to the list.
        let collector = java.collect(2 * EACH / 3).await;
        let mut running = rust.run();
        java.ask_with("target_offer", &"direct".into()).await;
        counts.insert("direct".to_owned(), 0);
        let (start, pause) = (Instant::now(), Duration::from_millis(50));
        let (mut ours, mut javas) = (Vec::new(), 0);
        while ours.len() + javas < counts.len() && start.elapsed() < MAX_WAIT {
            while let Ok(delivery) = tokio::time::timeout(pause, running.next(MAX_WAIT)).await {
                ours.push(delivery);
            }
            javas = collector.within(pause).await.len();
        }
        ours.extend(running.stop().await);
        let javas = collector.within(pause).await;
        for delivery in &ours {
            *counts.get_mut(delivery.payload.as_str().unwrap()).unwrap() += 1;
        }
        for arrival in &javas {
            let Value::String(name) = &arrival.value else { panic!("{arrival:?}") };
            *counts.get_mut(name).unwrap() += 1;
        }
        let wrong: Vec<_> = counts.iter().filter(|(_, count)| **count != 1).collect();
        let (ours, javas) = (ours.len(), javas.len());
        assert!(wrong.is_empty(), "{options}: {wrong:?}; Java got {javas}, Rust {ours}");
        assert_eq!(rust.queue().stats().await.unwrap().live(), 0, "{options}");
    }
}

async fn java_sees_our_jobs_with_exact_visibility(version: Version) {
    let redis = Redis::start();
    let peer = Peer::start(version, redis.port()).await;
    let java = peer.queue(QUEUE, Codec::String);
    let rust = Rust::connect(&redis, version, "&codec=string&java_visibility=exact").await;
    java.open().await;
    for name in ["a", "b", "c"] {
        let _ = rust.schedule(json!(name), LATER).await;
    }
    assert_eq!(java.ask::<u64>("delayed_size").await, 3);
    assert!(java.ask_with("delayed_contains", &"b".into()).await);
    let all: Vec<Value> = ["a", "b", "c"].map(Value::from).into();
    assert_eq!(java.ask::<Vec<Value>>("delayed_values").await, all);

    // A job removed by Java is gone for Rust, and its key is free.
    let keyed = rust.dq.queue_of::<crate::rust::report>().unwrap();
    let job = || keyed.schedule("\"keyed\"", "application/json").after(LATER).key("k");
    assert!(matches!(job().await.unwrap(), Scheduled::Created(_)));
    assert!(matches!(job().await.unwrap(), Scheduled::Kept(_)));
    assert!(java.ask_with("delayed_remove", &"keyed".into()).await);
    let again = job().await.unwrap();
    assert!(matches!(again, Scheduled::Created(_)), "{again:?}");
    assert!(java.ask_with("delayed_remove", &"b".into()).await);

    assert_eq!(keyed.cancel("k").await.unwrap(), Cancelled::Cancelled);
    assert_eq!(java.ask::<u64>("delayed_size").await, 2);
    assert!(!java.ask_with("delayed_contains", &"keyed".into()).await);
    assert_eq!(rust.queue().stats().await.unwrap().scheduled, 2);

    // A delivered job is gone for Java, and a failed job's retry is invisible to it.
    let mut running = rust.run();
    let _ = rust.schedule(json!("fail"), Duration::ZERO).await;
    assert_eq!(running.next(MAX_WAIT).await.attempt, 1);
    assert_eq!(running.next(MAX_WAIT).await.attempt, 2);
    running.stop().await;
    assert_eq!(rust.queue().stats().await.unwrap().dead, 1);
    assert_eq!(java.ask::<u64>("delayed_size").await, 2);
    assert_eq!(java.ask::<u64>("target_size").await, 0);
}

async fn rust_takes_over_when_java_dies(version: Version) {
    let redis = Redis::start();
    let offering = Peer::start(version, redis.port()).await;
    let java = offering.queue(QUEUE, Codec::String);
    java.open().await;
    java.offer(&"orphan".into(), SOON).await;
    java.offer(&"late orphan".into(), SOON * 2).await;
    drop(java);
    offering.kill().await;

    // A Rust process without handlers transfers due jobs for a Java client that only takes.
    let config = dq::redis::RedissonConfig::from_url(
        &dq::backend::ConnectUrl::parse(&format!(
            "redisson://127.0.0.1:{}/0?response_timeout=60s&codec=string&format={}",
            redis.port(),
            if version.has_legacy_members() { "legacy" } else { "current" }
        ))
        .unwrap(),
    );
    let mut config = config.unwrap();
    config.consumed_by_java.insert(dq::QueueName::new(QUEUE).unwrap());
    let transferring = dq::Dq::builder().backend_config(Box::new(config)).connect().await.unwrap();
    let taking = Peer::start(version, redis.port()).await;
    let taken = taking.queue(QUEUE, Codec::String).take(MAX_WAIT).await;
    assert_eq!(taken, Some("orphan".into()));
    let taken = taking.queue(QUEUE, Codec::String).take(MAX_WAIT).await;
    assert_eq!(taken, Some("late orphan".into()));
    transferring.close().await.unwrap();

    // Java offers and dies again; a Rust runner delivers.
    let java = taking.queue(QUEUE, Codec::String);
    java.open().await;
    java.offer(&"handled".into(), SOON).await;
    drop(java);
    taking.kill().await;
    let rust = Rust::connect(&redis, version, "&codec=string").await;
    let mut running = rust.run();
    let delivery = running.next(MAX_WAIT).await;
    assert_eq!(delivery.payload, "handled");
    assert!(delivery.at_ms >= delivery.due_ms);
    running.stop().await;
}

async fn another_format_is_refused_and_its_members_run(version: Version) {
    let other = if version.has_legacy_members() { Version::V4_7_0 } else { Version::V3_20_1 };
    let redis = Redis::start();
    let peer = Peer::start(version, redis.port()).await;
    let java = peer.queue(QUEUE, Codec::String);
    java.open().await;
    java.offer(&"pending".into(), LATER).await;

    // With the other format configured, scheduling is refused and stores nothing.
    let wrong = Rust::connect(&redis, other, "&codec=string").await;
    let error = wrong.try_schedule(json!("x"), LATER).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(error.to_string().contains("format ="), "{error}");
    assert_eq!(java.ask::<Vec<Value>>("delayed_values").await, vec!["pending".into()]);

    // Another program adds a member in the other format and one in no format, which break Java's
    // transfer script. The program publishes no message, so the Rust runner sees them before Java.
    let timeout = format!("redisson_delay_queue_timeout:{{{QUEUE}}}");
    let other_format: &[u8] = if version.has_legacy_members() {
        b"\x08ABCDEFGH\x03\0\0\0\0\0\0\0odd"
    } else {
        b"ABCDEFGH\x03\0\0\0\0\0\0\0odd"
    };
    redis.command_bytes(&[b"ZADD", timeout.as_bytes(), b"1000", other_format]);
    redis.command_bytes(&[b"ZADD", timeout.as_bytes(), b"1001", b"no member at all"]);
    let rust = Rust::connect(&redis, version, "&codec=string").await;
    let mut running = rust.run();
    assert_eq!(
        running.next(MAX_WAIT).await.payload,
        "odd",
        "a member of the other format is due too"
    );
    running.stop().await;
    assert_eq!(
        redis.command(&["ZCARD", &timeout]).int(),
        1,
        "only the entry that is not due is left"
    );
    let quarantine = format!("dq:stray:{{{QUEUE}}}");
    assert_eq!(redis.command(&["ZCARD", &quarantine]).int(), 1, "kept for an operator");

    java.offer(&"after".into(), SOON).await;
    assert_eq!(java.take(MAX_WAIT).await, Some("after".into()));
}
