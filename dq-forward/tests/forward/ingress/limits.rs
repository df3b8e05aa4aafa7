use std::sync::Arc;

use dq_servers::{Redis, shared_rabbitmq};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};

use super::fixture::{Collector, Running, client, memory, publish, source, until};
use crate::broker::{channel, declare, declare_with, take};

#[tokio::test]
async fn two_groups_of_a_stream_each_take_all_entries() {
    let redis = Redis::start();
    let url = redis.url();
    let ingress = |group: &str, queue: &str| {
        let more = format!("group = '{group}'\nkey = 'header:key'");
        source("redis-stream", &url, "stream", &more).replace("'Q'", &format!("'{queue}'"))
    };
    for key in ["k1", "k2"] {
        redis.command(&["XADD", "stream", "*", "key", key]);
    }
    let both = ingress("mail", "MAIL") + &ingress("audit", "AUDIT");
    let dq = client(memory(), &both).await;
    let running = Running::start(&dq);
    for group in ["mail", "audit"] {
        until("all entries are acknowledged", async || {
            let groups = redis.command(&["XINFO", "GROUPS", "stream"]);
            // The last delivered id follows name, consumers and pending entries.
            let has_read = groups.list().iter().any(|fields| {
                let fields = fields.list();
                fields[1].text() == group && fields[7].text() != "0-0"
            });
            has_read && redis.command(&["XPENDING", "stream", group]).list()[0].int() == 0
        })
        .await;
    }
    running.stop().await;
    for queue in ["MAIL", "AUDIT"] {
        for key in ["k1", "k2"] {
            let found = dq.queue(queue).unwrap().get(key).await.unwrap();
            assert!(found.is_some(), "{queue} has no job for {key}");
        }
    }
}

#[tokio::test]
async fn if_unmapped_messages_have_no_room_the_others_still_become_one_job_each() {
    let url = shared_rabbitmq().vhost("ingress-full");
    let channel = channel(&url).await;
    declare(&channel, "in").await;
    let mut full = FieldTable::default();
    full.insert("x-max-length".into(), AMQPValue::LongInt(1));
    full.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    declare_with(&channel, "in.unmapped", full).await;
    publish(&channel, "in.unmapped", "fills the queue", BasicProperties::default()).await;
    let mut headers = FieldTable::default();
    headers.insert("x-delay".into(), AMQPValue::LongInt(0));
    let good = BasicProperties::default().with_headers(headers);
    for number in 0..10 {
        if number == 5 {
            publish(&channel, "in", "bad", BasicProperties::default()).await;
        }
        publish(&channel, "in", &number.to_string(), good.clone()).await;
    }
    let backend = memory();
    let collector = Collector::of_store(Arc::clone(&backend) as _).await;
    let ingress = source("amqp", &url, "in", "delay = 'header:x-delay'");
    let running = Running::start(&client(backend, &ingress).await);
    collector.wait(10).await;
    running.stop().await;
    until("the bad message is back in its queue", async || {
        let Some((_, body)) = take(&channel, "in").await else { return false };
        assert_eq!(String::from_utf8_lossy(&body), "bad", "others are acknowledged");
        true
    })
    .await;
    assert!(take(&channel, "in").await.is_none(), "others are acknowledged");
    let all: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    assert_eq!(collector.payloads(), all, "each is one job");
}

/// Redis disconnects a client if its replies exceed the limit.
#[tokio::test]
async fn large_elements_are_read_in_small_pieces() {
    let redis = Redis::start();
    let url = redis.url();
    let limit = ["CONFIG", "SET", "client-output-buffer-limit", "normal 3mb 0 0"];
    assert!(redis.command(&limit).is_ok());
    let padding = "x".repeat(300_000);
    for number in 10..30 {
        redis.command(&["LPUSH", "list", &format!("{number}{padding}")]);
        // As a killed process leaves it, prefixed with its job id.
        let left = format!("{:016}{}{padding}", number, number + 20);
        redis.command(&["LPUSH", "list.taking", &left]);
    }
    let backend = memory();
    let collector = Collector::of_store(Arc::clone(&backend) as _).await;
    let ingress = source("redis-list", &url, "list", "");
    let running = Running::start(&client(backend, &ingress).await);
    collector.wait(40).await;
    until("all elements are removed", async || {
        redis.command(&["EXISTS", "list", "list.taking"]).int() == 0
    })
    .await;
    running.stop().await;
    let numbers: Vec<String> = collector.payloads().iter().map(|it| it[..2].to_owned()).collect();
    assert_eq!(numbers, (10..50).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_stream_entry_that_cannot_become_a_job_is_set_aside_with_the_reason() {
    let redis = Redis::start();
    let url = redis.url();
    let large = "x".repeat(1_100_000);
    redis.command(&["XADD", "stream", "1-1", "k", "1", "payload", &large]);
    redis.command_bytes(&[b"XADD", b"stream", b"1-2", b"photo", b"\xff\xfe"]);
    redis.command(&["XADD", "stream", "1-3", "k", ""]);
    // These two become jobs: one with a payload, and one with all fields as payload.
    redis.command_bytes(&[
        b"XADD",
        b"stream",
        b"1-4",
        b"photo",
        b"\xff",
        b"k",
        b"2",
        b"payload",
        b"{\"n\":2}",
    ]);
    redis.command(&["XADD", "stream", "1-5", "k", "3", "x", "y"]);

    let backend = memory();
    let collector = Collector::of_store(Arc::clone(&backend) as _).await;
    let ingress = source("redis-stream", &url, "stream", "key = 'header:k'\nunmapped = 'aside'");
    let running = Running::start(&client(backend, &ingress).await);
    collector.wait(2).await;
    until("three entries are set aside and all are acknowledged", async || {
        redis.command(&["XLEN", "aside"]).int() == 3
            && redis.command(&["XPENDING", "stream", "dq"]).list()[0].int() == 0
    })
    .await;
    running.stop().await;

    assert_eq!(collector.payloads(), ["{\"k\":\"3\",\"x\":\"y\"}", "{\"n\":2}"]);
    let aside = redis.command(&["XRANGE", "aside", "-", "+"]);
    let mut entries: Vec<(String, String)> = Vec::new();
    for entry in aside.list() {
        let fields = entry.list()[1].list();
        assert_eq!((fields[0].text(), fields[2].text()), ("dq-error".into(), "dq-entry".into()));
        entries.push((fields[3].text(), fields[1].text()));
    }
    entries.sort();
    let too_large = "the body has 1100000 bytes; at most 1048576 are allowed (`limits.payload`)";
    let not_text = "the field photo is not text; use a field `payload`";
    assert_eq!(entries[0], ("1-1".to_owned(), too_large.to_owned()));
    assert_eq!(entries[1], ("1-2".to_owned(), not_text.to_owned()));
    assert_eq!(entries[2].0, "1-3", "an empty key is refused by the store");
}
