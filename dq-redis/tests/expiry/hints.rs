//! Expiry keys are set for future due times, and wake listeners when they expire.

use dq_core::{Backend, Due, JobRef, Reschedule, Timestamp, Verdict};
use dq_servers::Redis;
use dq_testkit::fixture::dead_ids;

use crate::common::{HOUR, claim, dead, job, keyed, queue, settle};
use crate::expiry::fixture::{
    FAR, expire, expiry_key, hint, listen, open_on, schedule, server, until_events_arrive,
    until_expired,
};

fn expiry_keys(server: &Redis) -> Vec<i64> {
    let keys = server.command(&["KEYS", "{dq}:alarm:*:q"]);
    let due = |key: &dq_servers::Reply| key.text().split(':').nth(2).unwrap().parse().unwrap();
    let mut dues: Vec<i64> = keys.list().iter().map(due).collect();
    dues.sort_unstable();
    dues
}

fn far(offset: i64) -> Due {
    Due::At(Timestamp::from_millis(FAR.as_millis() + offset))
}

#[tokio::test]
async fn an_expiry_key_wakes_only_listeners_of_its_prefix_and_queue() {
    let server = server();
    let backend = open_on(&server).await;
    let receipt = schedule(&backend, job().due(HOUR)).await;
    let key = expiry_key("dq", receipt.due, "q");
    assert_eq!(server.command(&["PEXPIRETIME", &key]).int(), receipt.due.as_millis());
    // The native backend has published its own message before.
    let mut wakeups = listen(&backend).await;

    // If one of these wakes the listener, its hint comes before the last one.
    let early = Timestamp::from_millis(1);
    for other in
        [expiry_key("dq", early, "other"), expiry_key("dq2", early, "q"), "x:1:q".to_owned()]
    {
        expire(&server, &other).await;
    }
    assert_eq!(server.command(&["PEXPIRE", &key, "1"]).int(), 1);
    until_expired(&server, &key).await;
    assert_eq!(hint(&mut wakeups).await, receipt.due);

    expire(&server, &expiry_key("dq", FAR, "q")).await;
    assert_eq!(hint(&mut wakeups).await, FAR);
}

#[tokio::test]
async fn a_listener_is_woken_when_events_may_have_been_missed() {
    let server = server();
    let backend = open_on(&server).await;
    // The event connection is up; the first listener opens the message connection.
    until_events_arrive(&backend).await;
    let clients = server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).text();
    assert_eq!(clients.lines().count(), 1, "{clients}");
    let id = clients.split([' ', '=']).nth(1).unwrap();
    let mut wakeups = listen(&backend).await;
    assert_eq!(server.command(&["CLIENT", "KILL", "ID", id]).int(), 1);
    // A hint for 1970 means: claim now, something may be due.
    assert_eq!(hint(&mut wakeups).await, Timestamp::EPOCH);
}

#[tokio::test]
async fn each_call_that_sets_a_due_time_sets_an_expiry_key() {
    let server = server();
    let backend = open_on(&server).await;
    let stored = schedule(&backend, job().due(far(0))).await;
    let target = JobRef::new(queue(), stored.id);
    backend.reschedule(&[Reschedule { job: target.clone(), due: far(1) }]).await.unwrap();
    backend.cancel(&[target]).await.unwrap();
    for verdict in [
        Verdict::retry(far(2), "a reason"),
        Verdict::Snooze(far(3)),
        Verdict::Again { due: far(4), payload: "2".into() },
        dead(),
        // The last one, since it closes the queue.
        Verdict::Throttle(far(5)),
    ] {
        schedule(&backend, job()).await;
        let leased = claim(&backend, 10).await.jobs.remove(0);
        settle(&backend, &leased, verdict).await;
    }
    let jobs = dead_ids(&backend, &queue()).await;
    let replay = dq_core::Operation::Replay { queue: &queue(), jobs: &jobs, due: far(6) };
    backend.operate(replay).await.unwrap();
    let expected: Vec<_> = (0..7).map(|offset| FAR.as_millis() + offset).collect();
    let calls = "stored, moved, retried, snoozed, again, throttled and replayed";
    assert_eq!(expiry_keys(&server), expected, "{calls}");
}

#[tokio::test]
async fn the_expiry_key_of_a_delayed_retry_is_near_the_due_time() {
    let server = server();
    let backend = open_on(&server).await;
    schedule(&backend, job()).await;
    let leased = claim(&backend, 1).await.jobs.remove(0);
    settle(&backend, &leased, Verdict::retry(Due::from(HOUR), "a reason")).await;
    let due = backend.stats(&[queue()]).await.unwrap()[0].next_due.unwrap();
    let [key_due] = expiry_keys(&server)[..] else { panic!("not exactly one expiry key") };
    assert!(key_due.abs_diff(due.as_millis()) < 60_000, "{key_due} is the expiry key of {due}");
}

#[tokio::test]
async fn there_is_one_expiry_key_for_each_due_time_of_jobs_that_are_stored_and_not_due() {
    let server = server();
    let backend = open_on(&server).await;
    schedule(&backend, job()).await;
    schedule(&backend, job().due(Timestamp::from_millis(1))).await;
    assert!(expiry_keys(&server).is_empty());
    schedule(&backend, keyed("k").due(far(0))).await;
    let kept = backend.schedule(vec![keyed("k").due(HOUR)]).await.unwrap();
    assert!(!kept[0].is_stored());
    assert_eq!(expiry_keys(&server), [FAR.as_millis()]);
    backend.schedule((0..1_000).map(|n| job().due(far(n % 500))).collect()).await.unwrap();
    assert_eq!(expiry_keys(&server).len(), 500);
}
