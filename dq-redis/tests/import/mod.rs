//! Imports from real Redis servers: each job is moved exactly once. Entries that are no jobs stay
//! in the source and are reported.

mod fixture;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use dq_core::import::{ImportSource, SourceEntry, TakeRequest};
use dq_core::{Dq, ErrorKind, JobId, Timestamp};
use dq_redis::{Codec, RedissonSource, ZsetSource};
use dq_servers::{Redis, shared_redis};
use dq_testkit::faults::{Crash, CrashPoint, CrashingSource};
use fixture::{CURRENT, LEGACY, NOW, Redisson, Target};

fn sorted(mut payloads: Vec<String>) -> Vec<String> {
    payloads.sort();
    payloads
}

#[tokio::test]
async fn jobs_of_a_sorted_set_keep_their_due_times() {
    let redis = shared_redis();
    let add = |score: &str, member: &str| redis.command(&["ZADD", "plain", score, member]);
    add("1799999999999", "past");
    add("1800000060000", "in a minute");
    add("1800000059999.5", "at the same time");
    add("0", "at once");
    add("1800000000", "seconds");
    add("inf", "never");
    redis.command_bytes(&[b"ZADD", b"plain", b"1799999999000", b"\0 bytes \xff"]);

    let target = Target::new().await;
    let source = ZsetSource::new(&redis.url(), "plain", "Q").unwrap();
    let report = target.dq.import(&source).await.unwrap();
    assert_eq!((report.imported, report.rejected.total()), (5, 2));
    assert!(report.rejected.iter().any(|(reason, _)| reason.contains("are they in seconds?")));
    assert_eq!(redis.command(&["EXISTS", "dq_import:{plain}"]).int(), 0);

    assert_eq!(target.run_due().await, ["at once", "\0 bytes \u{fffd}", "past"]);
    target.clock.advance(Duration::from_millis(59_999));
    assert!(target.run_due().await.is_empty(), "a fraction is rounded up");
    target.clock.advance(Duration::from_millis(1));
    assert_eq!(target.run_due().await, ["at the same time", "in a minute"]);
    assert_eq!(
        redis.command(&["ZCARD", "plain"]).int(),
        2,
        "entries that are left stay in the source"
    );
    let again = target.dq.import(source.scores_in_seconds()).await.unwrap();
    assert_eq!((again.imported, again.rejected.total()), (1, 1));
}

fn first_request(listed: Vec<SourceEntry>) -> [TakeRequest; 1] {
    let SourceEntry { token, job, .. } = listed.into_iter().next().unwrap();
    [TakeRequest { id: JobId::from_bytes([1; 16]), token, job: job.unwrap() }]
}

#[tokio::test]
async fn an_entry_with_a_changed_due_time_is_not_taken_at_the_old_one() {
    let redis = shared_redis();
    redis.command(&["ZADD", "moved", "1800000000000", "x"]);
    let source = ZsetSource::new(&redis.url(), "moved", "Q").unwrap();
    let stale = first_request(source.list(0, 0, 10).await.unwrap());
    redis.command(&["ZADD", "moved", "1800000000001", "x"]);
    assert_eq!(source.take(0, &stale).await.unwrap(), [false]);
    assert!(source.journal().entries(10).await.unwrap().is_empty());

    let fresh = first_request(source.list(0, 0, 10).await.unwrap());
    assert_eq!(source.take(0, &fresh).await.unwrap(), [true]);
    assert_eq!(source.take(0, &fresh).await.unwrap(), [false]);
    let taken = source.journal().entries(10).await.unwrap();
    assert_eq!(taken[0].job.due, Timestamp::from_millis(1_800_000_000_001));
    let ids = [taken[0].id, JobId::from_bytes([2; 16])];
    assert_eq!(source.journal().mark_stored(&ids).await.unwrap(), [true, false]);
    source.journal().remove(&ids).await.unwrap();
    assert!(source.journal().entries(10).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_redisson_queue_is_imported_completely() {
    let redis = shared_redis();
    let mut queue = Redisson::new(redis, "whole");
    queue.current(1, r#""current""#, NOW + 60_000);
    queue.offer(LEGACY, 2, r#""legacy""#, NOW + 1_000, true);
    queue.offer(CURRENT, 3, r#""unlisted""#, NOW - 1, false);
    queue.current(4, "no json", NOW);
    queue.redis.command(&["RPUSH", &queue.order, "does not wait any more"]);
    queue.redis.command(&["ZADD", &queue.due, "1800000000000", "in no format"]);
    queue.push(r#""same""#);
    queue.push(r#""same""#);
    queue.push("due, and no json");

    let target = Target::new().await;
    let source = RedissonSource::new(&redis.url(), "whole", Codec::Json).unwrap();
    let source = source.queue("Q").unwrap();
    let before = queue.counts();
    let preview = target.dq.preview_import(&source).await.unwrap();
    assert_eq!((preview.importable, preview.resumable), (5, 0), "{preview:?}");
    assert_eq!((queue.counts(), target.run_all().await.len()), (before, 0), "nothing is changed");
    target.clock.set(Timestamp::from_millis(NOW));
    let report = target.dq.import(source).await.unwrap();
    assert_eq!((report.imported, report.rejected.total()), (5, 3), "{report:?}");
    assert_eq!(preview.rejected, report.rejected);
    assert!(
        report.rejected.iter().any(|(reason, count)| reason.contains("`string`") && count == 2)
    );
    assert!(report.rejected.iter().any(|(reason, count)| reason.contains("packed") && count == 1));
    // Left: two waiting entries, one also in the order list; an entry only there; a payload.
    assert_eq!(queue.counts(), [2, 2, 1, 0]);

    let mut ran = target.run_due().await;
    assert!(!ran.contains(&r#""legacy""#.to_owned()));
    target.clock.advance(Duration::from_millis(1_000));
    ran.extend(target.run_due().await);
    assert!(ran.contains(&r#""legacy""#.to_owned()) && !ran.contains(&r#""current""#.to_owned()));
    ran.extend(target.run_all().await);
    let all = ["current", "legacy", "same", "same", "unlisted"].map(|name| format!("{name:?}"));
    assert_eq!(sorted(ran), all);
}

#[tokio::test]
async fn a_redisson_queue_is_not_imported_into_itself() {
    let redis = shared_redis();
    let url = redis.url().replacen("redis://", "redisson://", 1);
    let dq = Dq::connect(&url).await.unwrap();
    let due = Timestamp::from(SystemTime::now()) + Duration::from_secs(3_600);
    let own = dq.queue("itself").unwrap();
    let _ = own.schedule("payload", "text/plain").at(due).await.unwrap();
    let source = |name: &str| RedissonSource::new(&redis.url(), name, Codec::Raw).unwrap();
    let prefixed = source("app:itself").queue("itself").unwrap();
    for source in [source("itself"), prefixed] {
        for error in [
            dq.preview_import(&source).await.unwrap_err(),
            // An import that is not refused never ends.
            tokio::time::timeout(Duration::from_secs(60), dq.import(&source))
                .await
                .expect("the import ends")
                .unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.remedy_text().unwrap().contains("`--queue`"), "{error}");
        }
    }
    assert_eq!(own.stats().await.unwrap().scheduled, 1);

    let other = source("itself").queue("another").unwrap();
    assert_eq!(dq.import(&other).await.unwrap().imported, 1);
    let stats = dq.queue("another").unwrap().stats().await.unwrap();
    assert_eq!((stats.scheduled, stats.next_due), (1, Some(due)));
    assert_eq!(own.stats().await.unwrap().scheduled, 0);
}

#[tokio::test]
async fn a_crash_at_any_step_neither_loses_nor_doubles_jobs() {
    let redis = Redis::start();
    let mut queue = Redisson::new(&redis, "mortal");
    let crashes = (1..).flat_map(|step| [(step, Crash::Before), (step, Crash::After)]);
    for crash in crashes {
        let source =
            RedissonSource::new(&redis.url(), "mortal", Codec::Raw).unwrap().queue("Q").unwrap();
        for number in 0..4 {
            let due = NOW + i64::from(number) * 30_000;
            queue.current(number, &format!("waits {number}"), due);
        }
        queue.offer(CURRENT, 9, "unlisted", NOW, false);
        queue.push("same");
        queue.push("same");
        let target = Target::new().await;
        let point = CrashPoint::default();
        point.set(Some(crash));
        let survived = target.dq.import(CrashingSource::new(&source, &point)).await.is_ok();
        let mut ran = target.run_due().await;
        target.dq.import(&source).await.unwrap();
        ran.extend(target.run_all().await);
        let all = ["same", "same", "unlisted", "waits 0", "waits 1", "waits 2", "waits 3"];
        assert_eq!(sorted(ran), all, "crash at {crash:?}");
        assert_eq!(queue.counts(), [0; 4]);
        if survived {
            assert!(crash.0 > 15, "only {} steps", crash.0);
            return;
        }
    }
}

#[tokio::test]
async fn jobs_that_java_takes_during_an_import_are_not_imported() {
    let redis = Redis::start();
    let mut queue = Redisson::new(&redis, "busy");
    for number in 0..2_000 {
        queue.current(number, &number.to_string(), NOW + i64::from(number % 7));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let java = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let (mut next, mut taken) = (2_000, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                queue.transfer();
                taken.extend(std::iter::from_fn(|| queue.poll()).take(3));
                queue.current(next, &next.to_string(), NOW);
                next += 1;
            }
            (queue, next, taken)
        }
    });
    let target = Target::new().await;
    let source = RedissonSource::new(&redis.url(), "busy", Codec::Raw).unwrap().queue("Q").unwrap();
    let mut imported = 0;
    for _ in 0..5 {
        imported += target.dq.import(&source).await.unwrap().imported;
    }
    stop.store(true, Ordering::Relaxed);
    let (mut queue, offered, taken) = java.join().unwrap();
    imported += target.dq.import(&source).await.unwrap().imported;
    assert_eq!(queue.counts(), [0; 4]);
    let imported_jobs = target.run_all().await;
    assert_eq!(imported_jobs.len() as u64, imported);
    assert!(!taken.is_empty());
    let all = (0..offered).map(|number| number.to_string()).collect();
    assert_eq!(sorted([imported_jobs, taken].concat()), sorted(all));
}

#[tokio::test]
async fn an_unusable_source_is_refused_and_unchanged() {
    let redis = shared_redis();
    let error = ZsetSource::new("sqlite://jobs.db", "q", "Q").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert_eq!(ZsetSource::new(&redis.url(), "q", "").unwrap_err().kind(), ErrorKind::InvalidInput);

    redis.command(&["SET", "text", "x"]);
    let source = ZsetSource::new(&redis.url(), "text", "Q").unwrap();
    let error = Target::new().await.dq.import(source).await.unwrap_err();
    assert_eq!((error.kind(), error.failed_operation()), (ErrorKind::Incompatible, "import"));

    redis.command(&["SET", "dq_import:{wrong}", "x"]);
    redis.command(&["ZADD", "wrong", "1800000000000", "x"]);
    let source = ZsetSource::new(&redis.url(), "wrong", "Q").unwrap();
    let request = first_request(source.list(0, 0, 1).await.unwrap());
    assert!(source.take(0, &request).await.is_err());
    assert_eq!(redis.command(&["ZCARD", "wrong"]).int(), 1);
}
