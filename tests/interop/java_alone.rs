//! Tests the peers (Java programs with a Redisson client) without this crate, and the Redisson
//! behaviour that the backend relies on.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dq_servers::Redis;

use crate::peer::{Codec, Order, Peer, PeerError, Type, Value, Version};

const SOON: Duration = Duration::from_millis(200);
const LATER: Duration = Duration::from_secs(3600);
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Generates each test for each version, in a module named after it.
macro_rules! for_each_version {
    ($($version:ident)*) => {
        $(
            #[allow(non_snake_case)]
            mod $version {
                use crate::peer::Version;

                #[tokio::test]
                async fn delivers_in_time() {
                    super::delivers_in_time(Version::$version).await;
                }

                #[tokio::test]
                async fn knows_what_is_pending() {
                    super::knows_what_is_pending(Version::$version).await;
                }

                #[tokio::test]
                async fn another_client_takes_over_when_killed() {
                    super::another_client_takes_over_when_killed(Version::$version).await;
                }

                #[tokio::test]
                async fn puts_prefixes_inside_the_braces() {
                    super::puts_prefixes_inside_the_braces(Version::$version).await;
                }
            }
        )*
    };
}

for_each_version! { V3_16_6 V3_20_1 V3_23_4 V4_7_0 }

async fn delivers_in_time(version: Version) {
    let redis = Redis::start();
    let peer = Peer::start(version, redis.port()).await;
    for codec in [Codec::Jackson, Codec::Kryo5, Codec::Default, Codec::TypedJson(Type::Order)] {
        let queue = peer.queue(codec.name(), codec);
        let order = Value::Order(Order { id: 7, amount: 1.5, ..Order::default() });
        queue.open().await.unwrap();
        let collector = queue.collect(1).await.unwrap();
        let due = now_ms() + SOON.as_millis() as u64;
        queue.offer(&order, SOON).await.unwrap();
        let arrivals = collector.within(MAX_WAIT).await.unwrap();
        assert_eq!(arrivals.len(), 1, "{codec:?}");
        assert_eq!(arrivals[0].value, order, "{codec:?}");
        assert!(arrivals[0].at_ms >= due, "{codec:?}: {} is before {due}", arrivals[0].at_ms);
    }
    let texts = peer.queue("texts", Codec::String);
    texts.open().await.unwrap();
    texts.offer(&"hello".into(), SOON).await.unwrap();
    assert_eq!(texts.take(MAX_WAIT).await.unwrap(), Some("hello".into()));
}

async fn knows_what_is_pending(version: Version) {
    let redis = Redis::start();
    let peer = Peer::start(version, redis.port()).await;
    let queue = peer.queue("q", Codec::String);
    let [a, b, c] = ["a", "b", "c"].map(Value::from);
    assert!(
        matches!(queue.offer(&a, LATER).await, Err(PeerError::Java(_))),
        "the queue is not open"
    );

    queue.open().await.unwrap();
    for (value, delay) in [(&a, 3 * LATER), (&b, LATER), (&c, 2 * LATER)] {
        queue.offer(value, delay).await.unwrap();
    }
    assert_eq!(queue.delayed_size().await.unwrap(), 3);
    let in_order_of_offers = vec![a.clone(), b.clone(), c.clone()];
    assert_eq!(queue.delayed_values().await.unwrap(), in_order_of_offers);
    assert!(queue.delayed_contains(&b).await.unwrap());
    assert!(queue.delayed_remove(&b).await.unwrap());
    assert!(!queue.delayed_remove(&b).await.unwrap());
    assert!(!queue.delayed_contains(&b).await.unwrap());
    assert_eq!(queue.delayed_poll().await.unwrap(), Some(a.clone()));
    assert_eq!(queue.delayed_values().await.unwrap(), [c]);
    assert!(queue.delayed_delete().await.unwrap());
    assert_eq!(queue.delayed_size().await.unwrap(), 0);

    assert!(queue.target_offer(&a).await.unwrap());
    assert!(queue.target_offer(&b).await.unwrap());
    assert_eq!(queue.target_size().await.unwrap(), 2);
    assert_eq!(queue.target_values().await.unwrap(), [a.clone(), b]);
    assert_eq!(queue.target_poll().await.unwrap(), Some(a));
    assert!(queue.target_delete().await.unwrap());
    assert_eq!(queue.target_poll().await.unwrap(), None);
    queue.destroy().await.unwrap();
    assert!(queue.delayed_size().await.is_err(), "the queue was destroyed");
}

async fn another_client_takes_over_when_killed(version: Version) {
    let redis = Redis::start();
    let (first, second) = tokio::join!(
        Peer::start(version, redis.port()),
        Peer::start(other_with_same_members(version), redis.port()),
    );
    let queue = first.queue("q", Codec::String);
    queue.open().await.unwrap();
    queue.offer(&"left behind".into(), LATER).await.unwrap();
    first.kill().await;
    let timeout = "redisson_delay_queue_timeout:{q}";
    make_due(&redis, timeout);
    tokio::time::sleep(SOON).await;
    let members = redis.command(&["ZCARD", timeout]).int();
    assert_eq!(members, 1, "no client is left to transfer it");

    let queue = second.queue("q", Codec::String);
    queue.open().await.unwrap();
    assert_eq!(queue.take(MAX_WAIT).await.unwrap(), Some("left behind".into()));
}

async fn puts_prefixes_inside_the_braces(version: Version) {
    let redis = Redis::options().password("secret").start();
    let options = Peer::options(version, redis.port());
    let peer = options.prefix("app:").password("secret").db(3).start().await;
    let queue = peer.queue("q", Codec::String);
    queue.open().await.unwrap();
    queue.offer(&"x".into(), LATER).await.unwrap();
    queue.target_offer(&"y".into()).await.unwrap();

    let mut redis = redis.connect();
    assert!(redis.command(&["SELECT", "3"]).is_ok());
    let keys = redis.command(&["KEYS", "*"]);
    let mut keys: Vec<String> = keys.list().iter().map(|key| key.text()).collect();
    keys.sort();
    let wrapped = ["redisson_delay_queue:{app:q}", "redisson_delay_queue_timeout:{app:q}"];
    assert_eq!(keys, ["app:q", wrapped[0], wrapped[1]]);
}

/// A benchmark relies on this.
#[tokio::test]
async fn the_transfer_rate_counts_what_was_moved() {
    let redis = Redis::start();
    let peer = Peer::start(Version::V4_7_0, redis.port()).await;
    let queue = peer.queue("q", Codec::String);
    queue.open().await.unwrap();
    for i in 0..250 {
        queue.offer(&Value::String(i.to_string()), LATER).await.unwrap();
    }
    queue.destroy().await.unwrap();
    make_due(&redis, "redisson_delay_queue_timeout:{q}");
    let rate = queue.transfer_rate(250, MAX_WAIT).await.unwrap();
    assert_eq!((rate.moved, queue.target_size().await.unwrap()), (250, 250));
    assert!(rate.per_second() > 0.0 && rate.failures == 0, "{rate:?}");
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

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}
