use std::collections::BTreeMap;
use std::sync::Arc;

use dq_core::{Dq, Verdict};
use dq_servers::{Redis, Reply};

use crate::common::{Running, client, schedule};

async fn forwarding(url: &str) -> Dq {
    client(&format!(
        "[queues.S.forward]\ntype = \"redis-stream\"\nurl = \"{url}\"\nstream = \"due-stream\"\n\
         [queues.L.forward]\ntype = \"redis-list\"\nurl = \"{url}\"\nlist = \"due-list\""
    ))
    .await
}

fn entries(redis: &Redis) -> Vec<BTreeMap<String, Vec<u8>>> {
    let reply = redis.command(&["XRANGE", "due-stream", "-", "+"]);
    let entries = reply.list().iter().map(|entry| {
        let fields = entry.list()[1].list().chunks(2);
        fields.map(|pair| (pair[0].text(), pair[1].bytes().to_vec())).collect()
    });
    entries.collect()
}

/// All list elements, last first.
fn elements(redis: &Redis) -> Vec<String> {
    redis.command(&["LRANGE", "due-list", "0", "-1"]).list().iter().map(Reply::text).collect()
}

#[tokio::test]
async fn jobs_become_entries_and_elements() {
    let redis = Redis::start();
    let dq = forwarding(&redis.url()).await;
    let mut running = Running::start(dq.runner());
    let stream = dq.queue("S").unwrap();
    let job = stream.schedule(b"\x00\xff".to_vec(), "application/x-bytes").key("k");
    let id = job.header("tenant", "seven").await.unwrap().id();
    assert_eq!(running.next().await, (id, Verdict::Done));
    let [entry] = entries(&redis).try_into().unwrap();
    assert_eq!(entry["first-due"], entry["due"], "it runs for the first time");
    for (field, value) in [
        ("id", id.to_string().as_bytes()),
        ("queue", b"S"),
        ("key", b"k"),
        ("attempt", b"1"),
        ("deliveries", b"1"),
        ("fencing-token", b"1"),
        ("content-type", b"application/x-bytes"),
        ("header:tenant", b"seven"),
        ("payload", b"\x00\xff"),
    ] {
        assert_eq!(entry[field], value, "{field}");
    }

    // A number too large for a float, and bytes that are not JSON.
    let first = schedule(&dq, "L", "{\"n\":12345678901234567890123}").await;
    assert_eq!(running.next().await, (first, Verdict::Done));
    let list = dq.queue("L").unwrap();
    let second = list.schedule(b"\x00\xff".to_vec(), "application/x-bytes").key("k").await;
    assert_eq!(running.next().await, (second.unwrap().id(), Verdict::Done));
    // Parameters do not matter, because JSON is always UTF-8.
    let third = list.schedule(b"[3]".to_vec(), "Application/JSON; charset=utf-8").await;
    assert_eq!(running.next().await, (third.unwrap().id(), Verdict::Done));
    running.stop().await;
    let [third, second, first_element] = elements(&redis).try_into().unwrap();
    assert!(third.ends_with(",\"payload\":[3]}"), "{third}");
    assert!(
        first_element.starts_with(&format!("{{\"id\":\"{first}\",\"queue\":\"L\",\"key\":null,"))
    );
    assert!(
        first_element.ends_with(",\"payload\":{\"n\":12345678901234567890123}}"),
        "{first_element}"
    );
    assert!(
        first_element.contains(",\"attempt\":1,\"deliveries\":1,\"fencing_token\":"),
        "{first_element}"
    );
    assert!(
        second.ends_with(",\"payload_base64\":\"AP8=\"}") && second.contains("\"key\":\"k\""),
        "{second}"
    );
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error_and_not_the_end() {
    let redis = Redis::start();
    assert!(redis.command(&["SET", "due-stream", "x"]).is_ok());
    let dq = forwarding(&redis.url()).await;
    let mut running = Running::start(dq.runner());
    schedule(&dq, "S", "1").await;
    let verdict = running.next_text().await;
    assert!(verdict.starts_with("retry") && verdict.contains("WRONGTYPE"), "{verdict}");
    redis.command(&["DEL", "due-stream"]);
    while running.next().await.1 != Verdict::Done {}
    running.stop().await;
    assert_eq!(entries(&redis).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_in_mid_write_loses_nothing() {
    let redis = Arc::new(Redis::options().aof().start());
    let dq = forwarding(&redis.url()).await;
    let mut running = Running::start(dq.runner());
    let schedule = async |job: usize| schedule(&dq, ["S", "L"][job % 2], &job.to_string()).await;
    let (killed, restarted) = (Arc::clone(&redis), Arc::clone(&redis));
    let mut missing = running
        .done_over_a_crash(schedule, move || killed.kill(), move || restarted.restart())
        .await;
    running.stop().await;
    for entry in entries(&redis) {
        missing.remove(std::str::from_utf8(&entry["id"]).unwrap());
    }
    for element in elements(&redis) {
        let element: serde_json::Value = serde_json::from_str(&element).unwrap();
        missing.remove(element["id"].as_str().unwrap());
    }
    assert!(missing.is_empty(), "lost: {missing:?}");
}
