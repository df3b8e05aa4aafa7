//! `redisson_bridge`: an order offered in Redis comes back as feedback. This test uses the
//! `redis-cli` commands from the example's head comment; `tests/interop/bridge.rs` uses Java
//! instead.

use dq_servers::Redis;

use crate::program::Program;

const NAME: &str = "redisson_bridge";

fn offer() -> String {
    let comment = include_str!("../../examples/redisson_bridge.rs").replace("//! ", "");
    let (_, rest) = comment.split_once("EVAL \"").expect("the comment has a script");
    rest.split_once("\" 1 ").expect("the script ends").0.to_owned()
}

#[test]
fn an_order_that_redis_cli_offers_comes_back_as_feedback() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    let mut bridge = Program::start(NAME, dir.path(), &["--redis", &redis.url()]);
    assert_eq!(bridge.line().unwrap(), "waiting for orders in ORDER_TIMEOUT; Ctrl-C to stop");
    let delayed = "redisson_delay_queue_timeout:{ORDER_TIMEOUT}";
    redis.command(&["EVAL", &offer(), "1", delayed, "{\"id\":1001}"]);
    assert_eq!(bridge.line().unwrap(), "order 1001 was not paid in time");

    // Jobs that Java has already moved to the queue's list. One is for the same order.
    redis.command(&["RPUSH", "ORDER_TIMEOUT", "{\"id\":1001}", "{\"id\":7,\"note\":\"?\"}"]);
    let mut lines = [bridge.line().unwrap(), bridge.line().unwrap()];
    lines.sort();
    assert_eq!(lines, ["order 1001 was not paid in time", "order 7 was not paid in time"]);
    let mut feedback = [(); 2].map(|()| {
        let reply = redis.command(&["BLPOP", "ORDER_FEEDBACK", "20"]);
        let [_, order] = reply.list() else { panic!("no feedback: {reply:?}") };
        order.text()
    });
    feedback.sort();
    assert_eq!(feedback, ["{\"id\":1001}", "{\"id\":7}"]);
    assert_eq!(redis.command(&["LLEN", "ORDER_FEEDBACK"]).int(), 0, "one feedback for an order");

    bridge.signal("INT");
    assert!(bridge.wait().success());
}
