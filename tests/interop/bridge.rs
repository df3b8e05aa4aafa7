//! Runs the example `redisson_bridge` with a Java client. Its handler gets the jobs that Java
//! offers, and Java's `take()` gets the jobs it schedules. No Java client transfers these to the
//! destination list: the bridge does.

#[path = "../examples/program.rs"]
#[allow(dead_code)]
mod program;

use std::time::Duration;

use dq_servers::Redis;

use crate::peer::{Codec, JsonClass, Order, Peer, Value, Version};
use crate::rust::now_ms;
use program::Program;

const SOON: Duration = Duration::from_millis(300);
const MAX_WAIT: Duration = Duration::from_secs(120);

fn order(id: i64) -> Value {
    Value::Order(Order { id, ..Order::default() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_go_both_ways_with_typed_json_and_json_in_strings() {
    let text = |id: i64| Value::String(format!("{{\"id\":{id}}}"));
    let codecs =
        [(Codec::TypedJson(JsonClass::Order), order(42), 42), (Codec::String, text(43), 43)];
    send_both_ways(Version::V4_7_0, &[], &codecs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_go_both_ways_with_jackson_and_the_legacy_format() {
    let options = ["--codec", "jackson:interop.Order", "--legacy"];
    send_both_ways(Version::V3_20_1, &options, &[(Codec::Jackson, order(44), 44)]).await;
}

async fn send_both_ways(version: Version, options: &[&str], codecs: &[(Codec, Value, i64)]) {
    let redis = Redis::start();
    let peer = Peer::start(version, redis.port()).await;
    let dir = tempfile::tempdir().unwrap();
    let url = redis.url();
    let arguments = [&["--redis", url.as_str()], options].concat();
    let bridge = Program::start("redisson_bridge", dir.path(), &arguments);
    assert!(bridge.line().unwrap().starts_with("waiting for orders"));

    for (codec, value, id) in codecs {
        // Not opened: an open queue makes the Java client transfer due entries itself.
        let feedback = peer.queue("ORDER_FEEDBACK", *codec);
        let taking = feedback.collect(1).await;
        let timeouts = peer.queue("ORDER_TIMEOUT", *codec);
        timeouts.open().await;
        let offered = now_ms();
        timeouts.offer(value, SOON).await;
        assert_eq!(bridge.line().unwrap(), format!("order {id} was not paid in time"), "{codec:?}");
        assert!(now_ms() >= offered + 300, "{codec:?}: early");
        let arrivals = taking.within(MAX_WAIT).await;
        let [arrival] = arrivals.as_slice() else { panic!("{codec:?}: {arrivals:?}") };
        assert_eq!(arrival.value, *value, "{codec:?}");
        // 300 ms until the example's handler runs, plus the feedback job's three-second delay.
        assert!(arrival.at_ms >= offered + 3_300, "{codec:?}: the feedback job was early");
    }
}
