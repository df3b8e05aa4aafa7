//! Expiry keys are set for future due times, and wake listeners when they expire.

use std::time::Duration;

use dq_core::{
    Backend, DeadKind, DeadReason, Due, JobRef, OnConflict, Operation, QueueName, Reschedule,
    Settlement, Timestamp, Verdict,
};
use dq_redis::RedisExpiryConfig;
use dq_servers::Redis;

use crate::fixture::{
    FAR, claim, expire, expiry_key, hint, job, listen, native, open, open_on, queue, schedule,
    server, until_events_arrive, until_expired,
};

const HOUR: Duration = Duration::from_secs(3600);

fn expiry_keys(server: &Redis) -> Vec<i64> {
    let keys = server.command(&["KEYS", "{dq}:alarm:*:q"]);
    let due = |key: &dq_servers::Reply| key.text().split(':').nth(2).unwrap().parse().unwrap();
    keys.list().iter().map(due).collect()
}

#[tokio::test]
async fn an_expiry_key_of_another_program_wakes_a_listener() {
    let server = server();
    let backend = open_on(&server).await;
    let mut wakeups = listen(&backend, &queue()).await;
    expire(&server, &expiry_key("dq", FAR, &queue())).await;
    assert_eq!(hint(&mut wakeups).await, FAR);
}

#[tokio::test]
async fn the_expiry_key_of_a_job_wakes_a_listener_when_it_expires() {
    let server = server();
    let backend = open_on(&server).await;
    let receipt = schedule(&backend, job(&queue(), Due::from(HOUR))).await;
    let key = expiry_key("dq", receipt.due, &queue());
    assert_eq!(server.command(&["PEXPIRETIME", &key]).int(), receipt.due.as_millis());
    // Listens only after the native backend has published its own message.
    let mut wakeups = listen(&backend, &queue()).await;
    assert_eq!(server.command(&["PEXPIRE", &key, "1"]).int(), 1);
    until_expired(&server, &key).await;
    assert_eq!(hint(&mut wakeups).await, receipt.due);
}

#[tokio::test]
async fn keys_of_other_queues_prefixes_and_programs_wake_no_listener() {
    let server = server();
    let backend = open_on(&server).await;
    let mut wakeups = listen(&backend, &queue()).await;
    let other = QueueName::new("other").unwrap();
    // If one of these wakes the listener, its hint comes before the last one.
    let early = Timestamp::from_millis(1);
    for key in
        [&expiry_key("dq", early, &other), &expiry_key("dq2", early, &queue()), "session:1:q"]
    {
        expire(&server, key).await;
    }
    expire(&server, &expiry_key("dq", FAR, &queue())).await;
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
    let mut wakeups = listen(&backend, &queue()).await;
    assert_eq!(server.command(&["CLIENT", "KILL", "ID", id]).int(), 1);
    // A hint for 1970 means: claim now, something may be due.
    assert_eq!(hint(&mut wakeups).await, Timestamp::EPOCH);
}

#[tokio::test]
async fn each_call_that_sets_a_due_time_sets_an_expiry_key() {
    let server = server();
    let backend = open_on(&server).await;
    let at = Timestamp::from_millis;

    let stored = schedule(&backend, job(&queue(), Due::At(FAR))).await;
    assert_eq!(expiry_keys(&server), [FAR.as_millis()]);
    let target = JobRef::new(queue(), stored.id);
    let later = Due::At(at(FAR.as_millis() + 1));
    backend.reschedule(&[Reschedule { job: target.clone(), due: later }]).await.unwrap();
    assert!(expiry_keys(&server).contains(&(FAR.as_millis() + 1)), "moved");
    backend.cancel(&[target]).await.unwrap();

    for (number, verdict) in
        [(2, (|due| Verdict::retry(due, "a reason")) as fn(Due) -> Verdict), (3, Verdict::Snooze)]
    {
        schedule(&backend, job(&queue(), Due::NOW)).await;
        let lease = claim(&backend).await.remove(0).lease();
        let due = at(FAR.as_millis() + number);
        let settlement = Settlement::new(lease, verdict(Due::At(due)));
        backend.settle(&[settlement]).await.unwrap();
        assert!(expiry_keys(&server).contains(&due.as_millis()), "{number}");
    }

    schedule(&backend, job(&queue(), Due::NOW)).await;
    let lease = claim(&backend).await.remove(0).lease();
    let reason = DeadReason::new(DeadKind::Undecodable, "for the test");
    let verdict = Verdict::Dead { reason, failed: true };
    backend.settle(&[Settlement::new(lease, verdict)]).await.unwrap();
    let due = at(FAR.as_millis() + 4);
    let replay = Operation::Replay {
        queue: &queue(),
        jobs: &dq_testkit::fixture::dead_ids(&backend, &queue()).await[..],
        due: Due::At(due),
    };
    backend.operate(replay).await.unwrap();
    assert!(expiry_keys(&server).contains(&due.as_millis()), "replayed");
    assert_eq!(expiry_keys(&server).len(), 5);
}

#[tokio::test]
async fn the_expiry_key_of_a_delayed_retry_is_near_the_due_time() {
    let server = server();
    let backend = open_on(&server).await;
    schedule(&backend, job(&queue(), Due::NOW)).await;
    let lease = claim(&backend).await.remove(0).lease();
    let settlement = Settlement::new(lease, Verdict::retry(Due::from(HOUR), "a reason"));
    backend.settle(&[settlement]).await.unwrap();
    let due = backend.stats(&[queue()]).await.unwrap()[0].next_due.unwrap();
    let [key_due] = expiry_keys(&server)[..] else { panic!("not exactly one expiry key") };
    assert!(key_due.abs_diff(due.as_millis()) < 1_000, "{key_due} is the expiry key of {due}");
}

#[tokio::test]
async fn jobs_that_are_due_or_not_stored_have_no_expiry_key() {
    let server = server();
    let backend = open_on(&server).await;
    schedule(&backend, job(&queue(), Due::NOW)).await;
    schedule(&backend, job(&queue(), Due::At(Timestamp::from_millis(1)))).await;
    assert!(expiry_keys(&server).is_empty());

    let keyed = |due| {
        let mut job = job(&queue(), due);
        job.key = Some(dq_core::JobKey::new("k").unwrap());
        job.on_conflict = OnConflict::Keep;
        job
    };
    schedule(&backend, keyed(Due::At(FAR))).await;
    let kept = backend.schedule(vec![keyed(Due::from(HOUR))]).await.unwrap();
    assert!(!kept[0].is_stored());
    assert_eq!(expiry_keys(&server), [FAR.as_millis()]);
}

#[tokio::test]
async fn jobs_with_equal_queue_and_due_time_share_an_expiry_key() {
    let server = server();
    let backend = open_on(&server).await;
    let dues = (0..1_000).map(|n| Due::At(Timestamp::from_millis(FAR.as_millis() + n % 500)));
    let jobs = dues.map(|due| job(&queue(), due)).collect();
    backend.schedule(jobs).await.unwrap();
    assert_eq!(expiry_keys(&server).len(), 500);
}

#[tokio::test]
async fn a_native_backend_with_the_same_prefix_shares_the_jobs() {
    let server = server();
    let (backend, native) = (open_on(&server).await, native(&server).await);
    let first = schedule(&backend, job(&queue(), Due::NOW)).await;
    let second = schedule(&*native, job(&queue(), Due::NOW)).await;
    let ids = |jobs: Vec<dq_core::LeasedJob>| -> Vec<_> {
        let mut ids: Vec<_> = jobs.iter().map(|leased| leased.job.id).collect();
        ids.sort();
        ids
    };
    let mut both = [first.id, second.id];
    both.sort();
    assert_eq!(ids(claim(&*native).await), both);
    assert!(claim(&backend).await.is_empty(), "all jobs are leased");
}

#[tokio::test]
async fn jobs_of_a_queue_with_shards_are_stored_and_claimed() {
    let server = server();
    let mut config = RedisExpiryConfig::new(server.url());
    config.shards.insert(queue(), 4);
    let backend = open(&config).await;
    for _ in 0..40 {
        schedule(&backend, job(&queue(), Due::NOW)).await;
    }
    let shards = server.command(&["KEYS", "{dq#*}:job:q"]);
    assert!(!shards.list().is_empty(), "jobs are in keys of shards");
    let mut claimed = 0;
    while claimed < 40 {
        let jobs = claim(&backend).await.len();
        assert!(jobs > 0, "{claimed} jobs of 40");
        claimed += jobs;
    }
}
