//! Alarms are set for what is due later, and wake who listens when they expire.

use std::time::Duration;

use dq_core::{
    Backend, DeadKind, DeadReason, Due, JobRef, OnConflict, Operation, QueueName, Reschedule,
    Settlement, Timestamp, Verdict,
};
use dq_redis::{Notifications, RedisExpiryConfig};
use dq_servers::Redis;

use crate::rig::{
    FAR, alarm, claim, expire, hint, job, listen, native, open, open_on, queue, schedule, server,
    until, until_expired,
};

const HOUR: Duration = Duration::from_secs(3600);

/// The due times of all alarms of queue `q`.
fn alarms(server: &Redis) -> Vec<i64> {
    let keys = server.command(&["KEYS", "{dq}:alarm:*:q"]);
    let due = |key: &dq_servers::Reply| key.text().split(':').nth(2).unwrap().parse().unwrap();
    keys.list().iter().map(due).collect()
}

#[tokio::test]
async fn an_alarm_that_another_program_sets_wakes_who_listens() {
    let server = server();
    let backend = open_on(&server).await;
    let mut wakeups = listen(&backend, &queue()).await;
    expire(&server, &alarm("dq", FAR, &queue())).await;
    assert_eq!(hint(&mut wakeups).await, FAR);
}

#[tokio::test]
async fn the_alarm_of_a_job_wakes_when_it_expires() {
    let server = server();
    let backend = open_on(&server).await;
    let receipt = schedule(&backend, job(&queue(), Due::from(HOUR))).await;
    let key = alarm("dq", receipt.due, &queue());
    assert_eq!(server.command(&["PEXPIRETIME", &key]).int(), receipt.due.as_millis());
    // What the native backend has published is over.
    let mut wakeups = listen(&backend, &queue()).await;
    assert_eq!(server.command(&["PEXPIRE", &key, "1"]).int(), 1);
    until_expired(&server, &key).await;
    assert_eq!(hint(&mut wakeups).await, receipt.due);
}

#[tokio::test]
async fn other_queues_and_foreign_keys_wake_nobody() {
    let server = server();
    let backend = open_on(&server).await;
    let mut wakeups = listen(&backend, &queue()).await;
    let other = QueueName::new("other").unwrap();
    // All of them would be earlier hints than the last.
    let early = Timestamp::from_millis(1);
    for key in [&alarm("dq", early, &other), &alarm("dq2", early, &queue()), "session:1:q"] {
        expire(&server, key).await;
    }
    expire(&server, &alarm("dq", FAR, &queue())).await;
    assert_eq!(hint(&mut wakeups).await, FAR);
}

#[tokio::test]
async fn who_listens_looks_again_when_alarms_may_have_been_missed() {
    let server = server();
    let backend = open_on(&server).await;
    // The connection for alarms is there, and that for messages comes with the first listener.
    until("connected", || backend.notifications() == Notifications::Working).await;
    let clients = server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).text();
    assert_eq!(clients.lines().count(), 1, "{clients}");
    let id = clients.split([' ', '=']).nth(1).unwrap();
    let mut wakeups = listen(&backend, &queue()).await;
    assert_eq!(server.command(&["CLIENT", "KILL", "ID", id]).int(), 1);
    assert_eq!(hint(&mut wakeups).await, Timestamp::EPOCH);
}

#[tokio::test]
async fn whatever_makes_a_job_due_later_sets_an_alarm() {
    let server = server();
    let backend = open_on(&server).await;
    let at = Timestamp::from_millis;

    let stored = schedule(&backend, job(&queue(), Due::At(FAR))).await;
    assert_eq!(alarms(&server), [FAR.as_millis()]);
    let target = JobRef::new(queue(), stored.id);
    let later = Due::At(at(FAR.as_millis() + 1));
    backend.reschedule(&[Reschedule { job: target.clone(), due: later }]).await.unwrap();
    assert!(alarms(&server).contains(&(FAR.as_millis() + 1)), "moved");
    backend.cancel(&[target]).await.unwrap();

    for (number, verdict) in [(2, Verdict::Retry as fn(Due) -> Verdict), (3, Verdict::Snooze)] {
        schedule(&backend, job(&queue(), Due::NOW)).await;
        let lease = claim(&backend).await.remove(0).lease();
        let due = at(FAR.as_millis() + number);
        let settlement = Settlement { lease, verdict: verdict(Due::At(due)) };
        backend.settle(&[settlement]).await.unwrap();
        assert!(alarms(&server).contains(&due.as_millis()), "{number}");
    }

    schedule(&backend, job(&queue(), Due::NOW)).await;
    let lease = claim(&backend).await.remove(0).lease();
    let reason = DeadReason::new(DeadKind::Undecodable, "for the test");
    let verdict = Verdict::Dead { reason, failed: true };
    backend.settle(&[Settlement { lease, verdict }]).await.unwrap();
    let due = at(FAR.as_millis() + 4);
    let replay = Operation::Replay { queue: &queue(), jobs: None, due: Due::At(due) };
    backend.operate(replay).await.unwrap();
    assert!(alarms(&server).contains(&due.as_millis()), "replayed");
    assert_eq!(alarms(&server).len(), 5);
}

#[tokio::test]
async fn a_retry_after_a_delay_is_resolved_by_the_servers_clock() {
    let server = server();
    let backend = open_on(&server).await;
    schedule(&backend, job(&queue(), Due::NOW)).await;
    let lease = claim(&backend).await.remove(0).lease();
    let settlement = Settlement { lease, verdict: Verdict::Retry(Due::from(HOUR)) };
    backend.settle(&[settlement]).await.unwrap();
    let due = backend.stats(&[queue()]).await.unwrap()[0].next_due.unwrap();
    let [alarm] = alarms(&server)[..] else { panic!("one alarm") };
    assert!(alarm.abs_diff(due.as_millis()) < 1_000, "{alarm} is the alarm of {due}");
}

#[tokio::test]
async fn what_is_due_or_not_stored_has_no_alarm() {
    let server = server();
    let backend = open_on(&server).await;
    schedule(&backend, job(&queue(), Due::NOW)).await;
    schedule(&backend, job(&queue(), Due::At(Timestamp::from_millis(1)))).await;
    assert!(alarms(&server).is_empty());

    let keyed = |due| {
        let mut job = job(&queue(), due);
        job.key = Some(dq_core::JobKey::new("k").unwrap());
        job.on_conflict = OnConflict::Keep;
        job
    };
    schedule(&backend, keyed(Due::At(FAR))).await;
    let kept = backend.schedule(vec![keyed(Due::from(HOUR))]).await.unwrap();
    assert!(!kept[0].is_stored());
    assert_eq!(alarms(&server), [FAR.as_millis()]);
}

#[tokio::test]
async fn jobs_of_one_queue_and_time_share_an_alarm() {
    let server = server();
    let backend = open_on(&server).await;
    let jobs =
        |n: i64| (0..1_000).map(move |i| Due::At(Timestamp::from_millis(FAR.as_millis() + i % n)));
    let jobs = jobs(500).map(|due| job(&queue(), due)).collect();
    backend.schedule(jobs).await.unwrap();
    assert_eq!(alarms(&server).len(), 500);
}

#[tokio::test]
async fn a_native_backend_with_the_same_prefix_shares_the_jobs() {
    let server = server();
    let (backend, native) = (open_on(&server).await, native(&server).await);
    let ours = schedule(&backend, job(&queue(), Due::NOW)).await;
    let theirs = schedule(&*native, job(&queue(), Due::NOW)).await;
    let ids = |jobs: Vec<dq_core::LeasedJob>| -> Vec<_> {
        let mut ids: Vec<_> = jobs.iter().map(|leased| leased.job.id).collect();
        ids.sort();
        ids
    };
    let mut both = [ours.id, theirs.id];
    both.sort();
    assert_eq!(ids(claim(&*native).await), both);
    assert!(claim(&backend).await.is_empty(), "they are leased");
}

#[tokio::test]
async fn queues_have_shards_here_too() {
    let server = server();
    let mut config = RedisExpiryConfig::new(server.url());
    config.shards.insert(queue(), 4);
    let backend = open(&config).await;
    for _ in 0..40 {
        schedule(&backend, job(&queue(), Due::NOW)).await;
    }
    let shards = server.command(&["KEYS", "{dq#*}:job:q"]);
    assert!(!shards.list().is_empty(), "jobs are in other shards than the first");
    let mut claimed = 0;
    while claimed < 40 {
        let jobs = claim(&backend).await.len();
        assert!(jobs > 0, "{claimed} jobs of 40");
        claimed += jobs;
    }
}
