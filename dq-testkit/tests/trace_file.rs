//! The checker finds violations in the traces of several processes.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dq_core::{
    Backend, ClaimParams, Due, Entropy, JobId, JobKey, JobRef, MemoryBackend, NewJob, OnConflict,
    QueueName, Renewal, Settlement, SystemClock, Target, Timestamp, Verdict, Want,
};
use dq_testkit::faults::{LeaseBegin, Recorder, read_traces};
use dq_testkit::trace::Promise;

const LEASE: Duration = Duration::from_secs(60);

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn key() -> JobKey {
    JobKey::new("k").unwrap()
}

/// One job is replaced, retried and done; another is cancelled; a third remains. The calls come
/// from two processes.
async fn record_traces(directory: &Path) -> Vec<JobId> {
    let store: Arc<dyn Backend> = Arc::new(MemoryBackend::new(Arc::new(SystemClock)));
    let producer = Recorder::in_file(store.clone(), directory.join("producer.jsonl")).unwrap();
    let runner = Recorder::in_file(store, directory.join("runner.jsonl")).unwrap();
    let entropy = Entropy::seeded(1);
    let id = || entropy.job_id(Timestamp::EPOCH);
    let new = |due: Due| NewJob::new(id(), queue(), due, Bytes::new());
    let [first, second] = [0, 1].map(|_| new(Due::NOW).key(key()).on_conflict(OnConflict::Replace));
    let (cancelled, remains) = (new(Due::After(LEASE)), new(Due::After(LEASE)));
    producer.schedule(vec![first]).await.unwrap();
    producer.schedule(vec![second.clone(), cancelled.clone(), remains.clone()]).await.unwrap();
    let target = Target::Id(cancelled.id);
    producer.cancel(&[JobRef::new(queue(), target)]).await.unwrap();
    for verdict in [Verdict::retry(Due::NOW, "an error"), Verdict::Done] {
        let wants = [Want::new(queue(), 10, LEASE)];
        let claimed = runner.claim(ClaimParams::new(&wants, 10, "runner")).await.unwrap();
        let [leased] = &claimed.jobs[..] else { panic!("one job is due: {claimed:?}") };
        assert_eq!(leased.job.id, second.id);
        runner.renew(&[Renewal::new(leased.lease(), LEASE)]).await.unwrap();
        runner.settle(&[Settlement::new(leased.lease(), verdict)]).await.unwrap();
    }
    vec![remains.id]
}

async fn promises_broken_by(change: impl Fn(String) -> String) -> Vec<Promise> {
    let directory = tempfile::tempdir().unwrap();
    let remaining = record_traces(directory.path()).await;
    for name in ["producer.jsonl", "runner.jsonl"] {
        let path = directory.path().join(name);
        fs::write(&path, change(fs::read_to_string(&path).unwrap())).unwrap();
    }
    let violations = read_traces(directory.path(), LeaseBegin::Answered).unwrap().check(&remaining);
    let mut promises: Vec<_> = violations.into_iter().map(|violation| violation.promise).collect();
    promises.sort_unstable();
    promises.dedup();
    promises
}

fn without_answers(text: &str, kind: &str) -> String {
    let is_answer = |line: &&str| line.contains("\"Return\"") && line.contains(kind);
    text.lines().filter(|line| !is_answer(line)).map(|line| format!("{line}\n")).collect()
}

#[tokio::test]
async fn what_happened_is_no_violation() {
    let directory = tempfile::tempdir().unwrap();
    let remaining = record_traces(directory.path()).await;
    let trace = read_traces(directory.path(), LeaseBegin::Answered).unwrap();
    assert_eq!(trace.check(&remaining), []);
    assert_eq!(trace.done_count(), 1);
    // Four jobs, a cancel, and two claims, renewals and settlements.
    assert_eq!(trace.events().len(), 4 + 1 + 6);
}

#[tokio::test]
async fn violations_are_found_in_the_files() {
    // Replacing text forges the traces of a broken store.
    for (from, to, promise) in [
        // Without the `Done` settlement, the job is gone for no reason.
        (r#""verdict":"Done""#, r#""verdict":"Release""#, Promise::NothingLost),
        // The store's clock was behind the due times.
        (r#"{"Claim":{"now":1"#, r#"{"Claim":{"now":-1"#, Promise::NeverEarly),
        // Nothing settled the first lease before the second began.
        (r#""accepted":true"#, r#""accepted":false"#, Promise::OneLeaseAtATime),
        // The failed attempt was not counted.
        (r#""attempts":1"#, r#""attempts":0"#, Promise::FailuresCounted),
    ] {
        let found = promises_broken_by(|text| text.replace(from, to)).await;
        assert!(found.contains(&promise), "{to}: {found:?}");
    }
}

#[tokio::test]
async fn a_call_of_a_killed_process_may_have_taken_effect_or_not() {
    // The checker accepts both without the runner's answers, or with a torn last line in each file.
    for kind in ["{\"Settle\":", "{\"Renew\":"] {
        assert_eq!(promises_broken_by(|text| without_answers(&text, kind)).await, [], "{kind}");
    }
    let torn = |text: String| text[..text.len() - 20].to_owned();
    assert_eq!(promises_broken_by(torn).await, []);
}

#[tokio::test]
async fn leases_of_a_store_whose_log_decides_begin_when_the_claim_returns() {
    let directory = tempfile::tempdir().unwrap();
    let remaining = record_traces(directory.path()).await;
    let path = directory.path().join("runner.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    // As if the claims were made long before they reached the log.
    fs::write(&path, text.replace("{\"Claim\":{\"now\":1", "{\"Claim\":{\"now\":-1")).unwrap();
    let check = |begin| read_traces(directory.path(), begin).unwrap().check(&remaining);
    assert_ne!(check(LeaseBegin::Answered), []);
    assert_eq!(check(LeaseBegin::Returned), []);
}

#[tokio::test]
async fn a_foreign_line_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.jsonl"), "{\"no\":1}\n").unwrap();
    let error = read_traces(directory.path(), LeaseBegin::Answered).unwrap_err().to_string();
    assert!(error.contains("a.jsonl") && error.contains("no"), "{error}");
}
