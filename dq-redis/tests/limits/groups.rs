//! Groups: who is woken, which leases count, and what happens to damaged and lost data. The
//! behaviour suite and the random model test the rest.

use std::time::Duration;

use dq_core::{
    Backend, Cancelled, ClaimParams, Claimed, ErrorKind, Flow, JobId, JobRef, NewJob, QueueName,
    Renewal, Verdict, Want,
};
use dq_servers::Redis;
use dq_testkit::fixture::{assert_error, done_settlements, job, keyed, queue, stats};

use super::{at_most, claim_as, next_hint, open, was_woken};
use crate::common::{ForeignKey, HOUR, command_calls, declare, settle};

fn at_most_of_a_group(max: u32) -> Flow {
    Flow::UNLIMITED.group_max_running(max)
}

/// Stores due jobs of a group, the oldest first.
async fn store(backend: &dyn Backend, group: &str, count: u64) -> Vec<JobId> {
    let now = backend.now().await.unwrap();
    let due = |n| now - Duration::from_millis(count - n);
    let mut jobs: Vec<NewJob> = (0..count).map(|_| job("q").group(group)).collect();
    for (n, job) in (0..).zip(&mut jobs) {
        job.due = due(n).into();
    }
    let ids = jobs.iter().map(|job| job.id).collect();
    backend.schedule(jobs).await.unwrap();
    ids
}

async fn claim(backend: &dyn Backend, max: usize) -> Vec<JobId> {
    let claimed = claim_as(backend, "w", &[queue("q")], max).await;
    claimed.jobs.iter().map(|leased| leased.job.id).collect()
}

/// As if the server's clock had reached the end of the only lease.
fn end_lease(redis: &Redis) {
    let handle = redis.command(&["ZRANGE", "{dq}:lease:q", "0", "0"]).list()[0].bytes().to_vec();
    redis.command_bytes(&[b"ZADD", b"{dq}:lease:q", b"1", &handle]);
}

fn parked(redis: &Redis) -> i64 {
    redis.command(&["ZCARD", "{dq}:parked:q"]).int()
}

#[tokio::test]
async fn an_expired_lease_returns_the_lines_first_and_wakes_one_waiting_claimer() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let queues = [queue("q")];
    declare(&backend, &queues[0], at_most_of_a_group(1)).await;
    let mut first = backend.listen(&queues, "first").await.unwrap();
    let mut second = backend.listen(&queues, "second").await.unwrap();
    redis.command(&["PUBLISH", "{dq}:wake:q", "-1"]);
    for wakeups in [&mut first, &mut second] {
        while next_hint(wakeups).await != -1 {}
    }
    let jobs = store(&backend, "a", 3).await;
    assert_eq!(claim(&backend, 1).await, jobs[..1]);
    for worker in ["first", "second"] {
        assert!(claim_as(&backend, worker, &queues, 1).await.jobs.is_empty(), "{worker}");
    }
    assert_eq!(parked(&redis), 2);
    assert!(
        was_woken(&redis, &mut first).await && was_woken(&redis, &mut second).await,
        "new jobs"
    );

    end_lease(&redis);
    assert_eq!(stats(&backend, "q").await.ready, 3, "any call ends expired leases");
    assert!(was_woken(&redis, &mut first).await, "it has waited longest");
    assert!(!was_woken(&redis, &mut second).await, "there is room for one");
    // A claim that takes none returns the first.
    assert!(claim(&backend, 0).await.is_empty());
    assert_eq!(parked(&redis), 1);
    let again = claim_as(&backend, "first", &queues, 9).await;
    assert_eq!((again.jobs.len(), again.jobs[0].job.id), (1, jobs[0]), "the lost job");
    settle(&backend, &again.jobs[0], Verdict::Done).await;
    assert!(was_woken(&redis, &mut second).await, "now it has waited longest");
    assert_eq!(claim(&backend, 9).await, jobs[1..2]);
}

#[tokio::test]
async fn a_new_job_of_a_full_group_wakes_nobody_and_hides_no_other_job() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    declare(&backend, &queue("q"), at_most_of_a_group(1)).await;
    store(&backend, "a", 2).await;
    assert_eq!(claim(&backend, 9).await.len(), 1);
    let mut wakeups = backend.listen(&[queue("q")], "w").await.unwrap();
    redis.command(&["PUBLISH", "{dq}:wake:q", "-1"]);
    while next_hint(&mut wakeups).await != -1 {}
    store(&backend, "a", 1).await;
    assert!(!was_woken(&redis, &mut wakeups).await, "its group is full");
    store(&backend, "b", 1).await;
    assert!(was_woken(&redis, &mut wakeups).await, "its group is not");
    assert_eq!(parked(&redis), 2);
}

#[tokio::test]
async fn an_early_job_of_a_group_with_room_is_first() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    declare(&backend, &queue("q"), at_most_of_a_group(1)).await;
    let jobs = store(&backend, "a", 3).await;
    let running = claim_as(&backend, "w", &[queue("q")], 9).await;
    backend.settle(&done_settlements(&running)).await.unwrap();
    assert!(claim(&backend, 0).await.is_empty());
    assert_eq!(parked(&redis), 1, "another one has returned to the due jobs");
    let early = store(&backend, "a", 1_000).await;
    assert_eq!(claim(&backend, 9).await, early[..1]);
    assert_eq!(stats(&backend, "q").await.ready, 1_000 + 1);
    assert!(!jobs.is_empty());
}

#[tokio::test]
async fn jobs_that_run_when_a_group_gets_a_limit_count() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let jobs = store(&backend, "a", 5).await;
    let running = claim_as(&backend, "w", &[queue("q")], 2).await;
    declare(&backend, &queue("q"), at_most_of_a_group(2)).await;
    assert!(claim(&backend, 9).await.is_empty());
    settle(&backend, &running.jobs[0], Verdict::Done).await;
    assert_eq!(claim(&backend, 9).await, jobs[2..3]);
    for max in [1, 2] {
        declare(&backend, &queue("q"), at_most_of_a_group(max)).await;
        assert!(claim(&backend, 9).await.is_empty(), "two still run");
    }
    declare(&backend, &queue("q"), at_most_of_a_group(3)).await;
    assert_eq!(claim(&backend, 9).await, jobs[3..4]);
}

#[tokio::test]
async fn leases_that_others_have_ended_make_room() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    declare(&backend, &queue("q"), at_most_of_a_group(1)).await;
    let jobs = store(&backend, "a", 3).await;
    assert_eq!(claim(&backend, 9).await, jobs[..1]);
    assert!(claim(&backend, 9).await.is_empty());
    // A version without groups settles what it has leased before.
    redis.command(&["ZREMRANGEBYRANK", "{dq}:lease:q", "0", "-1"]);
    assert_eq!(claim(&backend, 9).await, jobs[1..2]);
    assert!(claim(&backend, 9).await.is_empty(), "one runs");
}

#[tokio::test]
async fn names_of_groups_need_no_care() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    declare(&backend, &queue("q"), at_most_of_a_group(1)).await;
    let names = ["a", "ab", "\"", "\\", "a\\\"", "\",\"dq-group\":\"a", "käufer", "{}"];
    for name in names {
        let mut all_parts = keyed("q", name).group(name).max_attempts(3).remember(HOUR);
        all_parts.headers.insert("a-header", "\"dq-group\":\"another\"");
        all_parts.headers.insert("dq-groups", "\\\"dq-group\":\"another\"");
        backend.schedule(vec![all_parts, job("q").group(name)]).await.unwrap();
    }
    let running = claim_as(&backend, "w", &[queue("q")], 99).await;
    let groups: Vec<_> = running.jobs.iter().map(|leased| leased.job.group().unwrap()).collect();
    assert_eq!(running.jobs.len(), names.len(), "one of each: {groups:?}");
    backend.settle(&done_settlements(&running)).await.unwrap();
    assert_eq!(claim(&backend, 99).await.len(), names.len());
}

#[tokio::test]
async fn nothing_is_left_after_the_last_job_of_a_group() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let queue = queue("q");
    declare(&backend, &queue, at_most_of_a_group(1)).await;
    let jobs = store(&backend, "a", 3).await;
    let running = claim_as(&backend, "w", std::slice::from_ref(&queue), 9).await;
    let by_id = |id: &JobId| JobRef::new(queue.clone(), *id);
    let cancelled = backend.cancel(&jobs[1..].iter().map(by_id).collect::<Vec<_>>()).await;
    assert_eq!(cancelled.unwrap(), [Cancelled::Cancelled; 2]);
    settle(&backend, &running.jobs[0], Verdict::Done).await;
    assert!(claim(&backend, 9).await.is_empty());
    for key in ["{dq}:groups:q", "{dq}:parked:q", "{dq}:due:q", "{dq}:lease:q", "{dq}:job:q"] {
        assert_eq!(redis.command(&["EXISTS", key]).int(), 0, "{key}");
    }
    let fields = redis.command(&["HKEYS", "{dq}:flow:q"]);
    assert_eq!(fields.list().len(), 1, "the declaration");
}

/// Parks more jobs than one claim returns.
#[tokio::test]
async fn all_parked_jobs_return_when_there_is_no_limit_any_more() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let queue = queue("q");
    let format = || redis.command(&["HGET", "{dq}:meta:q", "format"]).text();
    declare(&backend, &queue, at_most_of_a_group(1)).await;
    assert_eq!(format(), "3/3/3");
    store(&backend, "a", 2_500).await;
    for _ in 0..4 {
        claim(&backend, 9).await;
    }
    assert_eq!(parked(&redis), 2_499);
    declare(&backend, &queue, Flow::UNLIMITED).await;
    assert_eq!(format(), "3/3/3", "jobs are still parked");
    let (mut claimed, mut claims) = (0, 0);
    while claimed < 2_499 {
        claimed += claim(&backend, 1_000).await.len();
        claims += 1;
        assert!(claims < 1_000, "{claimed} jobs were claimed");
    }
    assert_eq!((parked(&redis), format()), (0, "3/1/1".to_owned()));
    declare(&backend, &queue, at_most(1)).await;
    assert_eq!(format(), "3/2/1");
    assert_eq!(redis.command(&["EXISTS", "{dq}:groups:q"]).int(), 0);
}

/// Parks 1,200 jobs of a group, one of which runs.
async fn parked_behind_one(redis: &Redis, backend: &dyn Backend) -> Claimed {
    declare(backend, &queue("q"), at_most_of_a_group(1)).await;
    store(backend, "a", 1_201).await;
    let running = claim_as(backend, "w", &[queue("q")], 9).await;
    while parked(redis) < 1_200 {
        assert!(claim(backend, 9).await.is_empty());
    }
    running
}

/// Runs all jobs, at most `max` at once. Returns how many.
async fn run_all(backend: &dyn Backend, mut running: Claimed, max: usize) -> usize {
    let (mut done, mut empty_claims) = (0, 0);
    while empty_claims < 5 {
        assert!(running.jobs.len() <= max, "{} run", running.jobs.len());
        empty_claims = if running.jobs.is_empty() { empty_claims + 1 } else { 0 };
        done += running.jobs.len();
        backend.settle(&done_settlements(&running)).await.unwrap();
        running = claim_as(backend, "w", &[queue("q")], 9).await;
    }
    done
}

#[tokio::test]
async fn parked_jobs_return_when_another_program_has_removed_keys_of_groups() {
    for removal in [
        &["DEL", "{dq}:groups:q"][..],
        &["ZREMRANGEBYRANK", "{dq}:groups:q", "10", "500"],
        &["DEL", "{dq}:parked:q"],
        &["ZREMRANGEBYRANK", "{dq}:parked:q", "10", "500"],
        &["HDEL", "{dq}:flow:q", "n"],
        &["HDEL", "{dq}:meta:q", "format"],
    ] {
        let redis = Redis::start();
        let backend = open(&redis).await;
        let running = parked_behind_one(&redis, &backend).await;
        redis.command(removal);
        if removal.contains(&"format") {
            // Without it a claim looks for no limits. The next declaration sets it.
            declare(&backend, &queue("q"), at_most_of_a_group(1)).await;
        }
        for _ in 0..3 {
            assert!(claim(&backend, 9).await.is_empty(), "one runs: {removal:?}");
        }
        assert_eq!(run_all(&backend, running, 1).await, 1_201, "{removal:?}");
        let left = ["groups", "parked", "due", "lease", "job"].map(|key| format!("{{dq}}:{key}:q"));
        for key in left {
            assert_eq!(redis.command(&["EXISTS", &key]).int(), 0, "{key} after {removal:?}");
        }
        let fields = redis.command(&["HKEYS", "{dq}:flow:q"]);
        assert_eq!(fields.list().len(), 1, "the declaration");
    }
}

#[tokio::test]
async fn a_changed_limit_returns_at_most_1000_jobs_in_a_call() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let running = parked_behind_one(&redis, &backend).await;
    declare(&backend, &queue("q"), at_most_of_a_group(2)).await;
    assert_eq!(parked(&redis), 1_200);
    let claimed = claim_as(&backend, "w", &[queue("q")], 0).await;
    assert!((200..400).contains(&parked(&redis)), "{} are parked", parked(&redis));
    assert_eq!(claimed.next_due, Some(claimed.now), "it is not done");
    claim_as(&backend, "w", &[queue("q")], 0).await;
    assert_eq!(claim_as(&backend, "w", &[queue("q")], 9).await.jobs.len(), 1);
    backend.settle(&done_settlements(&running)).await.unwrap();
    let next = claim_as(&backend, "w", &[queue("q")], 9).await;
    assert_eq!(run_all(&backend, next, 2).await, 1_199);
}

#[tokio::test]
async fn many_leases_are_counted_in_several_calls_and_exactly() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let queues = [queue("q")];
    store(&backend, "a", 2_503).await;
    let wants = [Want::new(queue("q"), 2_500, HOUR)];
    let running = backend.claim(ClaimParams::new(&wants, 2_500, "w")).await.unwrap();
    assert_eq!(running.jobs.len(), 2_500);
    store(&backend, "b", 2).await;
    let counted = || redis.command(&["HLEN", "{dq}:flow:q"]).int();
    declare(&backend, &queues[0], at_most_of_a_group(2_501)).await;
    assert!(counted() < 10);
    for calls in 1..=2 {
        let claimed = claim_as(&backend, "w", &queues, 9).await;
        assert!(claimed.jobs.is_empty(), "not all are counted yet");
        assert_eq!(claimed.next_due, Some(claimed.now), "it is not done");
        let range = 900 * calls..1_010 * calls;
        assert!(range.contains(&counted()), "{} are counted", counted());
        // One lease is renewed for a shorter time, and so is not met by the walk; one ends.
        let (first, last) = (&running.jobs[0], &running.jobs[2_499]);
        if calls == 1 {
            let renewal = Renewal::new(last.lease(), HOUR / 2);
            backend.renew(&[renewal]).await.unwrap();
            settle(&backend, first, Verdict::Done).await;
        }
    }
    let mut groups = Vec::new();
    for _ in 0..10 {
        let claimed = claim_as(&backend, "w", &queues, 9).await;
        groups.extend(claimed.jobs.iter().map(|leased| leased.job.group().unwrap().to_owned()));
    }
    groups.sort();
    assert_eq!(groups, ["a", "a", "b", "b"], "2,499 ran of a, and 2,501 may");
}

#[tokio::test]
async fn large_records_are_counted_a_few_in_a_call() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let large = || job("q").group("a").payload(vec![b'x'; 200_000]);
    backend.schedule((0..31).map(|_| large()).collect()).await.unwrap();
    let wants = [Want::new(queue("q"), 30, HOUR)];
    let running = backend.claim(ClaimParams::new(&wants, 30, "w")).await.unwrap();
    assert_eq!(running.jobs.len(), 30);
    declare(&backend, &queue("q"), at_most_of_a_group(30)).await;
    assert!(claim(&backend, 9).await.is_empty());
    let counted = || redis.command(&["HLEN", "{dq}:flow:q"]).int();
    assert!(counted() < 20, "{} are counted", counted());
    for _ in 0..9 {
        assert!(claim(&backend, 9).await.is_empty());
    }
    settle(&backend, &running.jobs[0], Verdict::Done).await;
    assert_eq!(claim(&backend, 9).await.len(), 1);
}

/// How many leases the server counts of a group.
fn counted(redis: &Redis, group: &str) -> Option<String> {
    let count = redis.command(&["HMGET", "{dq}:flow:q", &format!("n{group}")]);
    let count = &count.list()[0];
    (!count.is_nil()).then(|| count.text())
}

#[tokio::test]
async fn jobs_without_room_in_a_reply_are_not_counted_until_they_are_leased() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    declare(&backend, &queue("q"), at_most_of_a_group(10)).await;
    let large = || job("q").group("a").payload(vec![b'x'; 200_000]);
    backend.schedule((0..9).map(|_| large()).collect()).await.unwrap();
    assert_eq!(claim(&backend, 9).await.len(), 9, "a call has room for some of them");
    assert_eq!(counted(&redis, "a").as_deref(), Some("9"));
}

#[tokio::test]
async fn an_entry_that_is_no_job_is_not_counted_in_the_group_of_its_record() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    declare(&backend, &queue("q"), at_most_of_a_group(9)).await;
    store(&backend, "a", 1).await;
    let handle = redis.command(&["ZRANGE", "{dq}:due:q", "0", "0"]).list()[0].bytes().to_vec();
    let record = redis.command_bytes(&[b"HGET", b"{dq}:job:q", &handle]).bytes().to_vec();
    for stray in [&b"stray"[..], b"another stray"] {
        redis.command_bytes(&[b"HSET", b"{dq}:job:q", stray, &record]);
        redis.command_bytes(&[b"ZADD", b"{dq}:due:q", b"1", stray]);
    }
    assert_eq!(claim(&backend, 2).await, [], "two are no jobs");
    assert_eq!(counted(&redis, "a"), None);
    assert_eq!(claim(&backend, 2).await.len(), 1);
    assert_eq!(counted(&redis, "a").as_deref(), Some("1"));
}

/// Groups may not double the server's work.
#[tokio::test]
async fn a_claim_reads_each_job_once() {
    let calls = async |limits| {
        let redis = Redis::start();
        let backend = open(&redis).await;
        declare(&backend, &queue("q"), limits).await;
        for group in ["a", "b", "c"] {
            store(&backend, group, 3).await;
        }
        let before = command_calls(&redis);
        assert_eq!(claim(&backend, 6).await.len(), 6);
        let after = command_calls(&redis);
        ["zrangebyscore", "hmget"]
            .map(|name| after[name] - before.get(name).copied().unwrap_or_default())
    };
    let [without_scans, without_reads] = calls(at_most(1_000)).await;
    let [scans, reads] = calls(at_most_of_a_group(9)).await;
    assert_eq!(scans, without_scans);
    assert_eq!(reads, without_reads + 1, "the counts of the groups");
}

#[tokio::test]
async fn room_in_a_group_of_one_queue_among_many_is_found() {
    for loses_lines in [false, true] {
        let redis = Redis::start();
        let backend = open(&redis).await;
        // More than a claim looks at without the index of queues.
        let others = (0..20).map(|n| queue(&format!("q{n}")));
        let queues: Vec<QueueName> = others.chain([queue("q")]).collect();
        declare(&backend, &queue("q"), at_most_of_a_group(1)).await;
        let jobs = store(&backend, "a", 2).await;
        let running = claim_as(&backend, "w", &queues, 9).await;
        let full = claim_as(&backend, "w", &queues, 9).await;
        let lease_end = Some(running.jobs[0].leased_until);
        assert_eq!((full.jobs.len(), full.next_due), (0, lease_end), "the runner may sleep");
        if loses_lines {
            redis.command(&["DEL", "{dq}:groups:q"]);
        }
        settle(&backend, &running.jobs[0], Verdict::Done).await;
        let next = claim_as(&backend, "w", &queues, 9).await;
        assert_eq!((next.jobs.len(), next.jobs[0].job.id), (1, jobs[1]));
    }
}

#[tokio::test]
async fn parked_jobs_return_when_the_server_has_lost_the_limit() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    declare(&backend, &queue("q"), at_most_of_a_group(1)).await;
    let jobs = store(&backend, "a", 4).await;
    assert_eq!(claim(&backend, 9).await, jobs[..1]);
    redis.command(&["DEL", "{dq}:flow:q"]);
    assert_eq!(claim(&backend, 9).await, jobs[1..]);
    assert_eq!(claim(&backend, 9).await, []);
    assert_eq!(redis.command(&["HGET", "{dq}:meta:q", "format"]).text(), "3/1/1");
}

#[tokio::test]
async fn a_key_of_another_type_stops_its_queue_only() {
    let redis = Redis::start();
    let backend = open(&redis).await;
    let queues: [QueueName; 2] = [queue("q"), queue("well")];
    declare(&backend, &queues[0], at_most_of_a_group(1)).await;
    for kind in ["flow", "groups", "parked"] {
        let jobs = store(&backend, "a", 3).await;
        let running = claim_as(&backend, "w", &queues, 9).await;
        assert_eq!(running.jobs.len(), 1, "{kind}");
        let foreign = ForeignKey::replace(&redis, &format!("{{dq}}:{kind}:q"));
        backend.schedule(vec![job("well")]).await.unwrap();
        let served = claim_as(&backend, "w", &queues, 1).await;
        assert_eq!(served.jobs.len(), 1, "{kind}");
        backend.settle(&done_settlements(&served)).await.unwrap();
        let waits = [JobRef::new(queues[0].clone(), jobs[1])];
        if kind != "flow" {
            let refused = backend.cancel(&waits).await;
            assert_error(refused, ErrorKind::Incompatible, &["WRONGTYPE"]);
        }
        let findings = backend.check().await;
        assert!(findings.iter().any(|found| found.code == "redis.foreign-key"), "{findings:?}");
        foreign.restore();
        assert_eq!(backend.cancel(&waits).await.unwrap(), [Cancelled::Cancelled], "{kind}");
        backend.settle(&done_settlements(&running)).await.unwrap();
        let rest = claim_as(&backend, "w", &queues, 9).await;
        assert_eq!(rest.jobs.iter().map(|leased| leased.job.id).collect::<Vec<_>>(), jobs[2..]);
        backend.settle(&done_settlements(&rest)).await.unwrap();
    }
}
