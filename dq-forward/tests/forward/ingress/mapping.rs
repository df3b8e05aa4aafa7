use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dq_core::{ErrorKind, Ingress};
use dq_servers::{Redis, shared_rabbitmq};
use lapin::BasicProperties;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions};
use lapin::types::{AMQPValue, FieldTable};

use super::fixture::{Collector, LIMIT, Running, client, memory, publish, source, until};
use crate::broker::{channel, declare, declare_with, take};

/// As Spring does it: messages expire from a queue with a TTL and no consumers to an exchange.
/// Spring's converter sets content type and class, but no message id.
#[tokio::test]
async fn messages_of_a_ttl_and_dead_letter_pair_run_when_they_expire() {
    let url = shared_rabbitmq().vhost("ingress-ttl");
    let channel = channel(&url).await;
    let (exchange, due) = ("orders.dlx", "orders.due");
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let direct = lapin::ExchangeKind::Direct;
    let declared =
        channel.exchange_declare(exchange.into(), direct, options, FieldTable::default());
    declared.await.unwrap();
    declare(&channel, due).await;
    let bind = QueueBindOptions::default();
    let bound =
        channel.queue_bind(due.into(), exchange.into(), due.into(), bind, FieldTable::default());
    bound.await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString(exchange.into()));
    arguments.insert("x-dead-letter-routing-key".into(), AMQPValue::LongString(due.into()));
    arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(300));
    declare_with(&channel, "orders.delay", arguments).await;
    let backend = memory();
    // `id` makes a second message for the same order a duplicate.
    let ingress = source("amqp", &url, due, "key = '/orderId'\nid = '/orderId'");
    let running = Running::start(&client(Arc::clone(&backend) as _, &ingress).await);
    let collector = Collector::of_store(backend).await;
    for order in [17, 18, 17] {
        let mut headers = FieldTable::default();
        headers.insert("__TypeId__".into(), AMQPValue::LongString("com.example.Order".into()));
        let properties = BasicProperties::default()
            .with_content_type("application/json;charset=UTF-8".into())
            .with_content_encoding("UTF-8".into())
            .with_priority(0)
            .with_headers(headers);
        publish(&channel, "orders.delay", &format!("{{\"orderId\":{order}}}"), properties).await;
    }
    collector.wait(2).await;
    until("all messages are acknowledged", async || {
        let list = ["-q", "list_queues", "-p", "ingress-ttl", "messages", "--no-table-headers"];
        shared_rabbitmq().ctl(&list).lines().all(|line| line.trim() == "0")
    })
    .await;
    running.stop().await;
    assert_eq!(collector.payloads(), ["{\"orderId\":17}", "{\"orderId\":18}"]);
}

#[tokio::test]
async fn key_and_delay_come_from_the_message_and_others_are_set_aside() {
    let url = shared_rabbitmq().vhost("ingress-mapping");
    let channel = channel(&url).await;
    declare(&channel, "in").await;
    let with = |id: &str, delay: Option<AMQPValue>| {
        let mut headers = FieldTable::default();
        if let Some(delay) = delay {
            headers.insert("x-delay".into(), delay);
        }
        BasicProperties::default()
            .with_message_id(id.into())
            .with_headers(headers)
            .with_expiration("3600000".into())
    };
    let hour = AMQPValue::LongInt(3_600_000);
    publish(&channel, "in", "no JSON", with("bad-1", Some(hour.clone()))).await;
    publish(&channel, "in", "{\"key\":\"k1\"}", with("bad-2", None)).await;
    publish(&channel, "in", "{\"key\":\"k2\"}", with("good", Some(hour))).await;
    let backend = memory();
    let ingress = source("amqp", &url, "in", "key = '/key'\ndelay = 'header:x-delay'");
    let dq = client(Arc::clone(&backend) as _, &ingress).await;
    let running = Running::start(&dq);
    let mut aside = BTreeMap::new();
    let queue = dq.queue("Q").unwrap();
    let all = async {
        while aside.len() < 2 || queue.get("k2").await.unwrap().is_none() {
            declare(&channel, "in.unmapped").await;
            if let Some((properties, body)) = take(&channel, "in.unmapped").await {
                assert!(
                    properties.expiration().is_none(),
                    "a message that was set aside does not expire"
                );
                let error = properties.headers().as_ref().unwrap().inner()["x-dq-error"].clone();
                aside.insert(properties.message_id().clone().unwrap().to_string(), (body, error));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, all).await.expect("all messages are taken");
    running.stop().await;
    let text = |text: &str| AMQPValue::LongString(text.into());
    assert_eq!(aside["bad-1"], (b"no JSON".to_vec(), text("the body is not JSON")));
    assert_eq!(
        aside["bad-2"],
        (b"{\"key\":\"k1\"}".to_vec(), text("there is no delay at header:x-delay"))
    );
    let job = queue.get("k2").await.unwrap().unwrap().job;
    let delay = job.due.since(job.created);
    assert_eq!(delay, Duration::from_secs(3_600));
    assert!(take(&channel, "in").await.is_none(), "nothing blocks the queue");
}

#[tokio::test]
async fn settings_that_cannot_be_used_are_refused_by_name() {
    for (keys, expected) in [
        (
            "type = 'kafka'\nurl = 'x'",
            "no ingress is called \"kafka\"; known: amqp, redis-list, redis-stream",
        ),
        ("type = 'amqp'\nurl = 'hunter2'", "`url` is not the URL of an AMQP broker"),
        ("type = 'redis-list'\nurl = 'hunter2'", "`url` is not the URL of a Redis server"),
        ("type = 'amqp'\nurl = 'amqp://h'\nkey = 'order'", "`key` is \"order\""),
        ("type = 'amqp'\nurl = 'amqp://h'\ngroup = 'g'", "`group` is not a setting of amqp"),
        ("type = 'redis-list'\nurl = 'redis://h'\nca = 'c'", "`ca` is not a setting of redis-list"),
        ("type = 'amqp'\nurl = 'amqp://h'\nunmapped = 'in'", "`unmapped` is the same"),
        (
            "type = 'redis-list'\nurl = 'redis://h'\nunmapped = 'in.taking'",
            "`unmapped` is \"in.taking\"",
        ),
        (
            "type = 'amqp'\nurl = 'amqp://h'\nremember = '100000d'",
            "`remember` is longer than the store plans ahead",
        ),
        ("type = 'amqp'\nurl = 'amqp://h'\nkeys = '/k'", "unknown field `keys`"),
        ("type = 'amqp'", "missing field `url`"),
    ] {
        let ingress = format!("[[ingress]]\n{keys}\nfrom = 'in'\nqueue = 'Q'");
        let backend = memory();
        let error = Ingress::new(&client(backend, &ingress).await).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let text = error.to_string();
        assert!(text.contains("ingress.0: ") && text.contains(expected), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[tokio::test]
async fn a_key_of_another_type_loses_no_element_and_no_entry() {
    let redis = Redis::start();
    let url = redis.url();
    // Reads a number from the command statistics.
    let count = |command: &str, field: &str| -> u32 {
        let stats = redis.command(&["INFO", "commandstats"]).text();
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        let number = line.and_then(|line| line.split_once(&format!("{field}=")));
        number.map_or(0, |(_, rest)| rest.split(',').next().unwrap().trim().parse().unwrap())
    };
    assert!(redis.command(&["SET", "stream.unmapped", "x"]).is_ok());
    redis.command(&["XADD", "stream", "*", "no key", "x"]);
    let backend = memory();
    let list = source("redis-list", &url, "list", "key = '/key'");
    let ingress = list + &source("redis-stream", &url, "stream", "key = 'header:key'");
    let running = Running::start(&client(Arc::clone(&backend) as _, &ingress).await);
    // Makes the source read the element from the first list rather than recover it from the second.
    until("the source has looked for elements that are being taken", async || {
        count("llen", ":calls") > 0
    })
    .await;
    assert!(redis.command(&["SET", "list.taking", "x"]).is_ok());
    redis.command(&["LPUSH", "list", "{\"key\":\"k1\"}"]);
    until("Redis has refused commands of both sources", async || {
        ["lpush", "xadd"].iter().all(|command| count(command, "failed_calls") >= 1)
            && count("llen", "failed_calls") >= 2
    })
    .await;
    assert_eq!(redis.command(&["LLEN", "list"]).int(), 1);
    assert_eq!(redis.command(&["XPENDING", "stream", "dq"]).list()[0].int(), 1);
    let collector = Collector::of_store(backend).await;
    redis.command(&["DEL", "list.taking", "stream.unmapped"]);
    collector.wait(1).await;
    until("the entry is set aside", async || {
        redis.command(&["XLEN", "stream.unmapped"]).int() == 1
            && redis.command(&["XPENDING", "stream", "dq"]).list()[0].int() == 0
    })
    .await;
    running.stop().await;
    assert_eq!(collector.payloads(), ["{\"key\":\"k1\"}"]);
}

#[tokio::test]
async fn a_runner_takes_the_messages_of_the_queues_that_it_serves() {
    let redis = Redis::start();
    let url = redis.url();
    let other = source("redis-list", &url, "other", "").replace("'Q'", "'OTHER'");
    let both = other + &source("redis-list", &url, "list", "");
    let dq = client(memory(), &both).await;
    for list in ["other", "list"] {
        redis.command(&["LPUSH", list, "1"]);
    }
    let collector = Collector::default();
    let runner = dq.runner().raw_handler("Q", collector.clone()).only(["Q"]).build().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(runner.run_until(stopped));
    collector.wait(1).await;
    stop.send(()).unwrap();
    let ended = tokio::time::timeout(LIMIT, running).await;
    ended.expect("the runner ends").unwrap().unwrap();
    let lengths = ["list", "other"].map(|list| redis.command(&["LLEN", list]).int());
    assert_eq!(lengths, [0, 1]);
}
