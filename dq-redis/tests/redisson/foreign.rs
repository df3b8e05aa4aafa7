//! What others have written under Java's names and ours: it keeps no job back, and is told.

use dq_core::{
    BrowseParams, Cancelled, ClaimParams, Claimed, Due, ErrorKind, JobKey, JobRef, JobState,
    NewJob, Operation, QueueName, Result, Scheduled, Severity, Want,
};

use crate::rig::{LATER, NOTES, ORDER, Rig, TARGET, TIMEOUT, job, keyed, queue};

fn ours(kind: &str) -> String {
    format!("dq:{kind}:{{q}}")
}

fn by_key(key: &str) -> JobRef {
    JobRef::new(queue(), JobKey::new(key).unwrap())
}

/// Claims from several queues.
async fn claim(rig: &Rig, names: &[&str]) -> Result<Claimed> {
    let want =
        |name: &&str| Want { queue: QueueName::new(name).unwrap(), max: 20, lease_for: LATER };
    let wants: Vec<Want> = names.iter().map(want).collect();
    rig.backend.claim(ClaimParams { wants: &wants, limit: 20, worker: "test" }).await
}

async fn listed(rig: &Rig, state: JobState, limit: usize) -> Vec<dq_core::JobView> {
    let (queue, mut jobs, mut after) = (queue(), Vec::new(), None);
    loop {
        let params = BrowseParams { queue: &queue, state, after, limit };
        let page = rig.backend.browse(params).await.unwrap();
        jobs.extend(page.jobs);
        assert!(jobs.len() < 1_000, "the listing does not end");
        after = page.next;
        if after.is_none() {
            return jobs;
        }
    }
}

/// Every name, and whether a claim and a call that stores a job with a key look there.
async fn each_key_stops_its_queue_only(options: &str) {
    let strict = options.contains("strict");
    let rig = Rig::with(options).await;
    for (key, claims, stores) in [
        (ours("due"), true, true),
        (ours("job"), true, true),
        (ours("state"), true, true),
        (ours("lease"), true, true),
        (ours("key"), false, true),
        (ours("dead"), false, false),
        (ours("reason"), false, false),
        (ours("meta"), true, true),
        (ours("stray"), false, false),
        (TIMEOUT.to_owned(), true, true),
        (ORDER.to_owned(), strict, strict),
        (TARGET.to_owned(), true, false),
        (NOTES.to_owned(), true, true),
    ] {
        rig.backend.schedule(vec![job(Due::NOW, "1"), keyed(Due::NOW, "2", "k")]).await.unwrap();
        let settlement = rig.claim(1).await.into_iter().map(|leased| dq_core::Settlement {
            lease: leased.lease(),
            verdict: dq_core::Verdict::Snooze(Due::NOW),
        });
        rig.backend.settle(&settlement.collect::<Vec<_>>()).await.unwrap();
        rig.java_offers(1, 1_000, b"3");
        rig.redis.command(&["RPUSH", TARGET, "4"]);
        rig.redis.command(&["RENAME", &key, "aside"]);
        rig.redis.command(&["SET", &key, "something else"]);

        for _ in 0..2 {
            let well = NewJob { queue: QueueName::new("well").unwrap(), ..job(Due::NOW, "0") };
            rig.backend.schedule(vec![well]).await.unwrap();
            let names = if claims { &["q", "well"][..] } else { &["well"] };
            let claimed = claim(&rig, names).await.unwrap();
            assert_eq!(claimed.jobs.len(), 1, "the other queue is served ({key})");
        }
        if claims {
            let error = claim(&rig, &["q"]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
            assert!(error.to_string().contains("queue q"), "{error}");
        }
        let stored = rig.backend.schedule(vec![keyed(Due::NOW, "5", "other")]).await;
        match stored {
            Err(error) if stores => {
                assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
            }
            stored => assert!(stored.is_ok() && !stores, "{key}: {stored:?}"),
        }
        let findings = rig.backend.check().await;
        let finding = findings.iter().find(|found| found.code == "redis.foreign-key");
        let finding = finding.unwrap_or_else(|| panic!("{key}: {findings:?}"));
        assert_eq!(finding.severity, Severity::Error);
        assert!(finding.cause.contains(&key), "{finding}");

        rig.redis.command(&["DEL", &key]);
        rig.redis.command(&["RENAME", "aside", &key]);
        rig.redis.command(&["DEL", "aside"]);
        let mut taken = rig.drain(20).await;
        taken.sort_by(|a, b| a.job.payload.cmp(&b.job.payload));
        let payloads: Vec<_> = taken.iter().map(|leased| &leased.job.payload[..]).collect();
        let wanted = [&b"1"[..], b"2", b"3", b"4", b"5"];
        let all = if stores { &wanted[..4] } else { &wanted };
        assert_eq!(payloads, all, "nothing is lost and nothing half stored ({key})");
        assert!(taken.iter().all(|leased| leased.job.losses == 0), "{key}");
        assert_eq!(rig.len("ZCARD", TIMEOUT) + rig.len("HLEN", NOTES), 0, "{key}");
    }
    assert!(!rig.backend.check().await.iter().any(|found| found.code == "redis.foreign-key"));
}

#[tokio::test]
async fn a_key_of_another_type_stops_its_queue_only() {
    each_key_stops_its_queue_only("").await;
    each_key_stops_its_queue_only("?order_list=strict").await;
}

#[tokio::test]
async fn javas_list_of_another_type_stops_only_its_queue_with_fair() {
    let rig = Rig::with("?fair_with_java=true").await;
    for key in [TIMEOUT, TARGET, &ours("meta")] {
        rig.redis.command(&["SET", key, "something else"]);
        let well = NewJob { queue: QueueName::new("well").unwrap(), ..job(Due::NOW, "0") };
        rig.backend.schedule(vec![well]).await.unwrap();
        assert_eq!(claim(&rig, &["q", "well"]).await.unwrap().jobs.len(), 1, "{key}");
        let error = claim(&rig, &["q"]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
        rig.redis.command(&["DEL", key]);
        rig.backend.schedule(vec![job(Due::NOW, "1")]).await.unwrap();
        assert_eq!(rig.drain(9).await.len(), 1, "{key}");
    }
}

#[tokio::test]
async fn foreign_members_are_put_aside_and_told() {
    for options in ["", "?order_list=strict", "?fair_with_java=true"] {
        let rig = Rig::with(options).await;
        rig.backend.schedule(vec![job(Due::NOW, "ours")]).await.unwrap();
        rig.java_offers(1, 1_000, b"java");
        for (score, member) in [
            ("-inf", "no member"),
            ("1.5", ""),
            ("0", "\u{8}short"),
            ("7", "\u{8}ABCDEFGHx"),
            ("+inf", "never"),
        ] {
            rig.redis.command(&["ZADD", TIMEOUT, score, member]);
            rig.redis.command(&["RPUSH", ORDER, member]);
        }
        let mut taken: Vec<_> = Vec::new();
        for _ in 0..3 {
            taken.extend(rig.drain(9).await.into_iter().map(|leased| leased.job.payload));
        }
        taken.sort();
        assert_eq!(taken, ["java", "ours"], "{options}");
        // What is due at no time is found by whoever looks.
        assert!(listed(&rig, JobState::Scheduled, 1).await.is_empty());
        let findings = rig.backend.check().await;
        let strays = findings.iter().find(|found| found.code == "redis.strays").unwrap();
        assert!(strays.cause.starts_with("5 ") && strays.cause.contains("queue q"), "{strays}");
        assert!(strays.remedy.contains(&ours("stray")), "{strays}");
        assert_eq!(rig.len("ZCARD", &ours("stray")), 5, "{options}");
        assert_eq!(rig.len("ZCARD", TIMEOUT), 0, "{options}");
    }
}

#[tokio::test]
async fn scores_that_java_cannot_read_are_mended_and_keep_no_job_back() {
    let rig = Rig::with("").await;
    let mut pending = Vec::new();
    for (n, score) in
        ["9000000000000.5", "+inf", "9000000000000.25", "9000000000001"].iter().enumerate()
    {
        let member = rig.java_offers(n as u64, 9_000_000_000_000, format!("{n}").as_bytes());
        rig.redis.command_bytes(&[b"ZADD", TIMEOUT.as_bytes(), score.as_bytes(), &member]);
        pending.push(member);
    }
    for (n, score) in [(10, "-inf"), (11, "1000.5")] {
        let member = rig.java_offers(n, 1_000, b"due");
        rig.redis.command_bytes(&[b"ZADD", TIMEOUT.as_bytes(), score.as_bytes(), &member]);
    }
    let taken = rig.drain(9).await;
    assert_eq!(taken.len(), 2);
    // By id first: that looks through the queue, and must mend too.
    let id = dq_core::JobId::from_bytes(*b"\0\0\0\0\0\0\0\x01redisson");
    let view = rig.backend.get(&JobRef::new(queue(), id)).await.unwrap().unwrap();
    assert_eq!(view.job.payload, "1");
    for limit in [1, 2, 10] {
        let jobs = listed(&rig, JobState::Scheduled, limit).await;
        let payloads: Vec<_> = jobs.iter().map(|view| &view.job.payload[..]).collect();
        assert_eq!(payloads, [b"0", b"2", b"3", b"1"], "each once, {limit} a page");
    }
    let scores = rig.redis.command(&["ZRANGE", TIMEOUT, "0", "-1", "WITHSCORES"]);
    for score in scores.list().iter().skip(1).step_by(2) {
        score.text().parse::<u64>().expect("a whole number");
    }
    assert_eq!(
        rig.backend.cancel(&[JobRef::new(queue(), id)]).await.unwrap(),
        [Cancelled::Cancelled]
    );
    assert_eq!(rig.len("ZCARD", TIMEOUT), 3);
}

#[tokio::test]
async fn garbage_in_notes_keys_and_counters_stops_nothing() {
    let rig = Rig::with("?order_list=lazy").await;
    let due = [job(Due::NOW, "a"), keyed(Due::NOW, "b", "first")];
    let waits = [job(LATER, "c"), keyed(LATER, "d", "second")];
    rig.backend.schedule(due.iter().chain(&waits).cloned().collect()).await.unwrap();
    let marks = rig.redis.command(&["HKEYS", NOTES]);
    assert_eq!(marks.list().len(), 4);
    let note = |mark: &dq_servers::Reply, garbage: &[u8]| {
        rig.redis.command_bytes(&[b"HSET", NOTES.as_bytes(), mark.bytes(), garbage]);
    };
    for (n, mark) in marks.list().iter().enumerate() {
        // One could be read as the note of another job.
        note(mark, [&[7; 40], &b"\0\0\0\0\0\0\0\x01fourteen bytes\0\0\0\0\0\x01xx\0"[..]][n % 2]);
    }
    rig.redis.command(&[
        "HSET",
        NOTES,
        "",
        "x",
        "garbage",
        "no note",
        "eight by",
        "fourteen bytes",
    ]);
    rig.redis.command(&[
        "HSET",
        &ours("key"),
        "garbage",
        "no job",
        "odd",
        "fourteen bytes",
        "x",
        "",
    ]);
    rig.redis.command(&["HSET", &ours("key"), "absent", "sixteen bytes it"]);
    for field in ["token", "garbage", "sweep", "created", "cancelled", "done"] {
        rig.redis.command(&["HSET", &ours("meta"), field, "many"]);
    }
    for kind in ["due", "lease", "dead"] {
        rig.redis.command(&["ZADD", &ours(kind), "3", "", "4", "fourteen bytes", "5", "garbage"]);
    }
    for key in ["garbage", "odd", "x", "absent"] {
        assert!(rig.backend.get(&by_key(key)).await.unwrap().is_none(), "{key}");
        assert_eq!(
            rig.backend.cancel(&[by_key(key)]).await.unwrap(),
            [Cancelled::NotFound],
            "{key}"
        );
        let answer = rig.backend.schedule(vec![keyed(LATER, "new", key)]).await.unwrap();
        assert!(matches!(answer[..], [Scheduled::Created(_)]), "{key}: {answer:?}");
    }
    // What was noted is lost with the notes; the ids are in the members.
    let taken = rig.drain(9).await;
    let mut ids: Vec<_> = taken.iter().map(|leased| leased.job.id).collect();
    ids.sort();
    assert_eq!(ids, {
        let mut wanted = due.map(|job| job.id);
        wanted.sort();
        wanted
    });
    for state in [JobState::Scheduled, JobState::Ready, JobState::Running, JobState::Dead] {
        listed(&rig, state, 2).await;
    }
    for (garbage, mark) in [&b""[..], b"short"].iter().zip(marks.list()) {
        note(mark, garbage);
    }
    for job in &waits {
        rig.backend.get(&JobRef::new(queue(), job.id)).await.unwrap();
    }
    let replay = Operation::Replay { queue: &queue(), jobs: None, due: Due::NOW };
    rig.backend.operate(replay).await.unwrap();
    rig.backend.operate(Operation::Purge { queue: &queue() }).await.unwrap();
    assert_eq!(rig.backend.stats(&[queue()]).await.unwrap()[0].ready, 0);
    assert_eq!(rig.len("EXISTS", NOTES), 0);
}

#[tokio::test]
async fn members_of_one_name_do_not_take_each_others_place() {
    let rig = Rig::with("").await;
    // Java draws its ids; others copy them.
    rig.java_offers(1, 1_000, b"one");
    rig.java_offers(1, 1_000, b"two");
    let both = rig.claim(9).await;
    assert_eq!(both.len(), 2);
    assert_ne!(both[0].job.id, both[1].job.id);
    rig.java_offers(1, 1_000, b"three");
    let third = rig.claim(9).await;
    assert_eq!(third.len(), 1);
    let done: Vec<_> = both
        .iter()
        .chain(&third)
        .map(|leased| dq_core::Settlement {
            lease: leased.lease(),
            verdict: dq_core::Verdict::Done,
        })
        .collect();
    assert_eq!(rig.backend.settle(&done).await.unwrap(), [dq_core::Settled::Accepted; 3]);
}

#[tokio::test]
async fn whatever_lies_in_the_target_list_is_a_payload() {
    let rig = Rig::with("").await;
    let things: [&[u8]; 4] = [b"", b"\0\xff", b"\x08ABCDEFGH\x05\0\0\0\0\0\0\0hello", &[9; 70_000]];
    for thing in things {
        rig.redis.command_bytes(&[b"RPUSH", TARGET.as_bytes(), thing]);
    }
    let taken: Vec<_> = rig.drain(9).await.into_iter().map(|leased| leased.job.payload).collect();
    assert_eq!(taken, things);
    assert_eq!(rig.len("EXISTS", TARGET), 0);
}

#[tokio::test]
async fn a_purge_removes_no_key_of_another_type() {
    let rig = Rig::with("").await;
    for key in [ORDER, NOTES] {
        rig.backend.schedule(vec![job(LATER, "x")]).await.unwrap();
        rig.redis.command(&["DEL", key]);
        rig.redis.command(&["SET", key, "something else"]);
        rig.backend.operate(Operation::Purge { queue: &queue() }).await.ok();
        assert_eq!(rig.redis.command(&["GET", key]).text(), "something else");
        rig.redis.command(&["DEL", key]);
    }
}

#[tokio::test]
async fn nothing_is_half_stored_where_notes_cannot_be_swept() {
    let rig = Rig::with("").await;
    let past = dq_core::Timestamp::from_millis(1_000);
    rig.backend.schedule(vec![keyed(past, "taken", "k"), keyed(past, "taken", "l")]).await.unwrap();
    // Java took them.
    rig.redis.command(&["DEL", TIMEOUT]);
    rig.redis.command(&["RENAME", &ours("key"), "aside"]);
    rig.redis.command(&["SET", &ours("key"), "something else"]);
    let error = rig.backend.schedule(vec![job(LATER, "x")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert_eq!(rig.len("EXISTS", TIMEOUT), 0);
}
