//! Another program's data under Redisson's or this backend's keys holds up no job, and is
//! quarantined or reported.

use std::collections::HashSet;

use dq_core::{
    Cancelled, Claimed, Due, ErrorKind, JobRef, JobState, Operation, QueueName, Result, Scheduled,
    Severity, Verdict,
};
use dq_testkit::fixture::claim_for;

use crate::common::{ForeignKey, HOUR, by_key, list, purge, queue, replay_all, settle};
use crate::redisson::fixture::{DESTINATION, Fixture, INDEX, ORDER, TIMEOUT, job, job_in, keyed};

fn native_key(kind: &str) -> String {
    format!("dq:{kind}:{{q}}")
}

async fn claim(fixture: &Fixture, names: &[&str]) -> Result<Claimed> {
    claim_for(&*fixture.backend, names, 20, HOUR).await
}

/// Says for each key whether `claim` uses it, and whether scheduling a keyed job does.
async fn each_key_of_another_type_stops_only_its_queue(options: &str) {
    let exact = options.contains("exact");
    let fixture = Fixture::with(options).await;
    for (key, claims, stores) in [
        (native_key("due"), true, true),
        (native_key("job"), true, true),
        (native_key("state"), true, true),
        (native_key("lease"), true, true),
        (native_key("key"), false, true),
        (native_key("dead"), false, false),
        (native_key("reason"), false, false),
        (native_key("meta"), true, true),
        (native_key("stray"), false, false),
        (TIMEOUT.to_owned(), true, true),
        (ORDER.to_owned(), exact, exact),
        (DESTINATION.to_owned(), true, false),
        (INDEX.to_owned(), true, true),
    ] {
        fixture.schedule(vec![job(Due::NOW, "1"), keyed(Due::NOW, "2", "k")]).await;
        let leased = fixture.claim(1).await.remove(0);
        settle(&*fixture.backend, &leased, Verdict::Snooze(Due::NOW)).await;
        fixture.java_offers(1, 1_000, b"3");
        fixture.redis.command(&["RPUSH", DESTINATION, "4"]);
        let foreign = ForeignKey::replace(&fixture.redis, &key);

        for _ in 0..2 {
            let healthy = job_in(QueueName::new("healthy").unwrap(), Due::NOW, "0");
            fixture.schedule(vec![healthy]).await;
            let names = if claims { &["q", "healthy"][..] } else { &["healthy"] };
            let claimed = claim(&fixture, names).await.unwrap();
            assert_eq!(claimed.jobs.len(), 1, "the other queue is served ({key})");
        }
        if claims {
            let error = claim(&fixture, &["q"]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
            assert!(error.to_string().contains("queue q"), "{error}");
        }
        let stored = fixture.backend.schedule(vec![keyed(Due::NOW, "5", "other")]).await;
        match stored {
            Err(error) if stores => {
                assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
            }
            stored => assert!(stored.is_ok() && !stores, "{key}: {stored:?}"),
        }
        let findings = fixture.backend.check().await;
        let finding = findings.iter().find(|found| found.code == "redis.foreign-key");
        let finding = finding.unwrap_or_else(|| panic!("{key}: {findings:?}"));
        assert_eq!(finding.severity, Severity::Error);
        assert!(finding.cause.contains(&key), "{finding}");

        foreign.restore();
        let mut taken = fixture.drain(20).await;
        taken.sort_by(|a, b| a.job.payload.cmp(&b.job.payload));
        let payloads: Vec<_> = taken.iter().map(|leased| &leased.job.payload[..]).collect();
        let wanted = [&b"1"[..], b"2", b"3", b"4", b"5"];
        let all = if stores { &wanted[..4] } else { &wanted };
        assert_eq!(payloads, all, "nothing is lost or stored in part ({key})");
        assert!(taken.iter().all(|leased| leased.job.losses == 0), "{key}");
        assert_eq!(fixture.len("ZCARD", TIMEOUT) + fixture.len("HLEN", INDEX), 0, "{key}");
    }
    assert!(!fixture.backend.check().await.iter().any(|found| found.code == "redis.foreign-key"));
}

#[tokio::test]
async fn a_key_of_another_type_stops_only_its_queue() {
    each_key_of_another_type_stops_only_its_queue("").await;
    each_key_of_another_type_stops_only_its_queue("?java_visibility=exact").await;
}

/// The claim fails before it takes anything, although the destination list alone could fill it.
#[tokio::test]
async fn a_claim_takes_nothing_from_the_destination_list_if_a_key_has_another_type() {
    let fixture = Fixture::with("").await;
    fixture.redis.command(&["RPUSH", DESTINATION, "1", "2", "3"]);
    fixture.redis.command(&["SET", TIMEOUT, "not a sorted set"]);
    for _ in 0..2 {
        claim_for(&*fixture.backend, &["q"], 1, HOUR).await.unwrap_err();
    }
    assert_eq!(fixture.len("LLEN", DESTINATION), 3);
}

#[tokio::test]
async fn entries_that_are_no_members_are_quarantined_and_reported() {
    for options in ["", "?java_visibility=exact"] {
        let fixture = Fixture::with(options).await;
        fixture.schedule(vec![job(Due::NOW, "ours")]).await;
        fixture.java_offers(1, 1_000, b"java");
        for (score, member) in [
            ("-inf", "no member"),
            ("1.5", ""),
            ("0", "\u{8}short"),
            ("7", "\u{8}ABCDEFGHx"),
            ("+inf", "never"),
        ] {
            fixture.redis.command(&["ZADD", TIMEOUT, score, member]);
            fixture.redis.command(&["RPUSH", ORDER, member]);
        }
        let mut taken: Vec<_> = Vec::new();
        for _ in 0..3 {
            taken.extend(fixture.drain(9).await.into_iter().map(|leased| leased.job.payload));
        }
        taken.sort();
        assert_eq!(taken, ["java", "ours"], "{options}");
        assert!(list(&*fixture.backend, &queue(), JobState::Scheduled, 1).await.is_empty());
        let findings = fixture.backend.check().await;
        let finding = findings.iter().find(|found| found.code == "redis.strays").unwrap();
        assert!(finding.cause.starts_with("5 ") && finding.cause.contains("queue q"), "{finding}");
        assert!(finding.remedy.contains(&native_key("stray")), "{finding}");
        assert_eq!(fixture.len("ZCARD", &native_key("stray")), 5, "{options}");
        assert_eq!(fixture.len("ZCARD", TIMEOUT), 0, "{options}");
    }
}

#[tokio::test]
async fn scores_that_are_no_whole_numbers_are_rounded_up_and_hold_up_no_job() {
    let fixture = Fixture::with("").await;
    for (n, score) in
        ["9000000000000.5", "+inf", "9000000000000.25", "9000000000001"].iter().enumerate()
    {
        let member = fixture.java_offers(n as u64, 9_000_000_000_000, format!("{n}").as_bytes());
        fixture.redis.command_bytes(&[b"ZADD", TIMEOUT.as_bytes(), score.as_bytes(), &member]);
    }
    for (n, score) in [(10, "-inf"), (11, "1000.5")] {
        let member = fixture.java_offers(n, 1_000, b"due");
        fixture.redis.command_bytes(&[b"ZADD", TIMEOUT.as_bytes(), score.as_bytes(), &member]);
    }
    let taken = fixture.drain(9).await;
    assert_eq!(taken.len(), 2);
    // This searches the queue and must also correct the score.
    let id = dq_core::JobId::from_bytes(*b"\0\0\0\0\0\0\0\x01redisson");
    let view = fixture.backend.get(&JobRef::new(queue(), id)).await.unwrap().unwrap();
    assert_eq!(view.job.payload, "1");
    for limit in [1, 2, 10] {
        let jobs = list(&*fixture.backend, &queue(), JobState::Scheduled, limit).await;
        let payloads: Vec<_> = jobs.iter().map(|view| &view.job.payload[..]).collect();
        assert_eq!(payloads, [b"0", b"2", b"3", b"1"], "each once, {limit} a page");
    }
    let scores = fixture.redis.command(&["ZRANGE", TIMEOUT, "0", "-1", "WITHSCORES"]);
    for score in scores.list().iter().skip(1).step_by(2) {
        score.text().parse::<u64>().expect("a whole number");
    }
    assert_eq!(
        fixture.backend.cancel(&[JobRef::new(queue(), id)]).await.unwrap(),
        [Cancelled::Cancelled]
    );
    assert_eq!(fixture.len("ZCARD", TIMEOUT), 3);
}

#[tokio::test]
async fn garbage_in_index_key_map_sets_and_counters_stops_no_call() {
    let fixture = Fixture::with("?java_visibility=approximate").await;
    let due_jobs = [job(Due::NOW, "a"), keyed(Due::NOW, "b", "first")];
    let later_jobs = [job(HOUR, "c"), keyed(HOUR, "d", "second")];
    fixture.schedule(due_jobs.iter().chain(&later_jobs).cloned().collect()).await;
    let member_ids = fixture.redis.command(&["HKEYS", INDEX]);
    assert_eq!(member_ids.list().len(), 4);
    let overwrite = |member_id: &dq_servers::Reply, garbage: &[u8]| {
        fixture.redis.command_bytes(&[b"HSET", INDEX.as_bytes(), member_id.bytes(), garbage]);
    };
    // Half of the entries become malformed, the others well-formed, but another job's.
    let malformed = [7; 40];
    let of_another_job = b"\0\0\0\0\0\0\0\x01fourteen bytes\0\0\0\0\0\x01xx\0";
    for pair in member_ids.list().chunks(2) {
        overwrite(&pair[0], &malformed);
        overwrite(&pair[1], of_another_job);
    }
    for (field, value) in [("", "x"), ("garbage", "no entry"), ("eight by", "fourteen bytes")] {
        fixture.redis.command(&["HSET", INDEX, field, value]);
    }
    for (key, value) in [
        ("garbage", "no job"),
        ("odd", "fourteen bytes"),
        ("x", ""),
        ("absent", "sixteen bytes it"),
    ] {
        fixture.redis.command(&["HSET", &native_key("key"), key, value]);
    }
    for field in ["token", "garbage", "sweep", "created", "cancelled", "done"] {
        fixture.redis.command(&["HSET", &native_key("meta"), field, "many"]);
    }
    for kind in ["due", "lease", "dead"] {
        let garbage = ["3", "", "4", "fourteen bytes", "5", "garbage"];
        fixture.redis.command(&[&["ZADD", native_key(kind).as_str()][..], &garbage].concat());
    }
    for key in ["garbage", "odd", "x", "absent"] {
        assert!(fixture.backend.get(&by_key(&queue(), key)).await.unwrap().is_none(), "{key}");
        assert_eq!(
            fixture.backend.cancel(&[by_key(&queue(), key)]).await.unwrap(),
            [Cancelled::NotFound],
            "{key}"
        );
        let answer = fixture.backend.schedule(vec![keyed(HOUR, "new", key)]).await.unwrap();
        assert!(matches!(answer[..], [Scheduled::Created(_)]), "{key}: {answer:?}");
    }
    let taken = fixture.drain(9).await;
    let ids: HashSet<_> = taken.iter().map(|leased| leased.job.id).collect();
    assert_eq!(ids, HashSet::from(due_jobs.map(|job| job.id)));
    for state in [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Dead] {
        list(&*fixture.backend, &queue(), state, 2).await;
    }
    for (garbage, member_id) in [&b""[..], b"short"].iter().zip(member_ids.list()) {
        overwrite(member_id, garbage);
    }
    for job in &later_jobs {
        fixture.backend.get(&JobRef::new(queue(), job.id)).await.unwrap();
    }
    replay_all(&*fixture.backend, &queue()).await;
    purge(&*fixture.backend, &queue()).await;
    assert_eq!(fixture.backend.stats(&[queue()]).await.unwrap()[0].ready, 0);
    assert_eq!(fixture.len("EXISTS", INDEX), 0);
}

#[tokio::test]
async fn members_with_equal_ids_do_not_replace_each_other() {
    let fixture = Fixture::with("").await;
    fixture.java_offers(1, 1_000, b"one");
    fixture.java_offers(1, 1_000, b"two");
    let both = fixture.claim(9).await;
    assert_eq!(both.len(), 2);
    assert_ne!(both[0].job.id, both[1].job.id);
    fixture.java_offers(1, 1_000, b"three");
    let third = fixture.claim(9).await;
    assert_eq!(third.len(), 1);
    for leased in both.iter().chain(&third) {
        settle(&*fixture.backend, leased, Verdict::Done).await;
    }
}

#[tokio::test]
async fn any_element_of_the_destination_list_is_a_payload() {
    let fixture = Fixture::with("").await;
    let elements: [&[u8]; 4] =
        [b"", b"\0\xff", b"\x08ABCDEFGH\x05\0\0\0\0\0\0\0hello", &[9; 70_000]];
    for element in elements {
        fixture.redis.command_bytes(&[b"RPUSH", DESTINATION.as_bytes(), element]);
    }
    let taken: Vec<_> =
        fixture.drain(9).await.into_iter().map(|leased| leased.job.payload).collect();
    assert_eq!(taken, elements);
    assert_eq!(fixture.len("EXISTS", DESTINATION), 0);
}

#[tokio::test]
async fn a_purge_removes_no_key_of_another_type() {
    let fixture = Fixture::with("").await;
    for key in [ORDER, INDEX] {
        fixture.schedule(vec![job(HOUR, "x")]).await;
        fixture.redis.command(&["DEL", key]);
        fixture.redis.command(&["SET", key, "something else"]);
        fixture.backend.operate(Operation::Purge { queue: &queue() }).await.ok();
        assert_eq!(fixture.redis.command(&["GET", key]).text(), "something else");
        fixture.redis.command(&["DEL", key]);
    }
}

#[tokio::test]
async fn schedule_stores_nothing_if_a_key_of_another_type_stops_the_sweep_of_the_index() {
    let fixture = Fixture::with("").await;
    let past = dq_core::Timestamp::from_millis(1_000);
    fixture.schedule(vec![keyed(past, "taken", "k"), keyed(past, "taken", "l")]).await;
    // Java's transfer and take remove both.
    fixture.redis.command(&["DEL", TIMEOUT]);
    let _foreign = ForeignKey::replace(&fixture.redis, &native_key("key"));
    let error = fixture.backend.schedule(vec![job(HOUR, "x")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert_eq!(fixture.len("EXISTS", TIMEOUT), 0);
}

#[tokio::test]
async fn a_key_of_another_type_ends_no_job_half_way() {
    let fixture = Fixture::with("").await;
    for kind in ["key", "pin", "unpin"] {
        let waits = keyed(HOUR, "x", "k");
        fixture.schedule(vec![waits.clone()]).await;
        let foreign = ForeignKey::replace(&fixture.redis, &native_key(kind));
        let target = [JobRef::new(queue(), waits.id)];
        let cancelled = fixture.backend.cancel(&target).await;
        assert_eq!(cancelled.unwrap_err().kind(), ErrorKind::Incompatible, "{kind}");
        let purged = fixture.backend.operate(Operation::Purge { queue: &queue() }).await;
        assert_eq!(purged.unwrap_err().kind(), ErrorKind::Incompatible, "{kind}");
        foreign.restore();
        assert_eq!(
            list(&*fixture.backend, &queue(), JobState::Scheduled, 9).await.len(),
            1,
            "{kind}"
        );
        assert_eq!(
            fixture.backend.cancel(&target).await.unwrap(),
            [Cancelled::Cancelled],
            "{kind}"
        );
    }
}
