//! The Redisson behaviour that the backend relies on, without this crate.

use std::time::Duration;

use dq_servers::Redis;

use crate::peer::{Codec, JsonClass, Order, Peer, Value, Version};
use crate::rust::now_ms;

const SOON: Duration = Duration::from_millis(200);
const LATER: Duration = Duration::from_secs(3600);
const MAX_WAIT: Duration = Duration::from_secs(60);

crate::for_each_version! {
    delivers_in_time
    another_client_takes_over_when_killed
    puts_prefixes_inside_the_braces
}

async fn delivers_in_time(version: Version) {
    let redis = Redis::start();
    let peer = Peer::start(version, redis.port()).await;
    for codec in [Codec::Jackson, Codec::Kryo5, Codec::Default, Codec::TypedJson(JsonClass::Order)]
    {
        let queue = peer.queue(codec.name(), codec);
        let order = Value::Order(Order { id: 7, amount: 1.5, ..Order::default() });
        queue.open().await;
        let collector = queue.collect(1).await;
        let due = now_ms() + SOON.as_millis() as u64;
        queue.offer(&order, SOON).await;
        let arrivals = collector.within(MAX_WAIT).await;
        assert_eq!(arrivals.len(), 1, "{codec:?}");
        assert_eq!(arrivals[0].value, order, "{codec:?}");
        assert!(arrivals[0].at_ms >= due, "{codec:?}: {} is before {due}", arrivals[0].at_ms);
    }
    let texts = peer.queue("texts", Codec::String);
    texts.open().await;
    texts.offer(&"hello".into(), SOON).await;
    assert_eq!(texts.take(MAX_WAIT).await, Some("hello".into()));
}

async fn another_client_takes_over_when_killed(version: Version) {
    let redis = Redis::start();
    let (first, second) = tokio::join!(
        Peer::start(version, redis.port()),
        Peer::start(other_with_same_members(version), redis.port()),
    );
    let queue = first.queue("q", Codec::String);
    queue.open().await;
    queue.offer(&"left behind".into(), LATER).await;
    first.kill().await;
    let timeout = "redisson_delay_queue_timeout:{q}";
    make_due(&redis, timeout);
    tokio::time::sleep(SOON).await;
    let members = redis.command(&["ZCARD", timeout]).int();
    assert_eq!(members, 1, "no client is left to transfer it");

    let queue = second.queue("q", Codec::String);
    queue.open().await;
    assert_eq!(queue.take(MAX_WAIT).await, Some("left behind".into()));
}

async fn puts_prefixes_inside_the_braces(version: Version) {
    let redis = Redis::options().password("secret").start();
    let options = ["prefix=app:", "password=secret", "db=3"];
    let peer = Peer::start_with(version, redis.port(), &options).await;
    let queue = peer.queue("q", Codec::String);
    queue.open().await;
    queue.offer(&"x".into(), LATER).await;
    queue.ask_with("target_offer", &"y".into()).await;

    let mut redis = redis.connect();
    assert!(redis.command(&["SELECT", "3"]).is_ok());
    let keys = redis.command(&["KEYS", "*"]);
    let mut keys: Vec<String> = keys.list().iter().map(|key| key.text()).collect();
    keys.sort();
    let wrapped = ["redisson_delay_queue:{app:q}", "redisson_delay_queue_timeout:{app:q}"];
    assert_eq!(keys, ["app:q", wrapped[0], wrapped[1]]);
}

fn make_due(redis: &Redis, key: &str) {
    for member in redis.command(&["ZRANGE", key, "0", "-1"]).list() {
        redis.command_bytes(&[b"ZADD", key.as_bytes(), b"1", member.bytes()]).int();
    }
}

fn other_with_same_members(version: Version) -> Version {
    let same = |other: &&Version| {
        **other != version && other.has_legacy_members() == version.has_legacy_members()
    };
    *Version::ALL.iter().find(same).unwrap()
}
