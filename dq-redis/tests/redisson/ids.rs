//! Ids, and queue names with keys in different slots.

use dq_core::{
    BrowseParams, Cancelled, Due, ErrorKind, JobId, JobRef, JobState, NewJob, OnConflict,
    Reschedule, Rescheduled, Scheduled, Settlement, Verdict,
};

use crate::common::{HOUR, queue, settle};
use crate::redisson::fixture::{Fixture, TIMEOUT, job, job_in, keyed};

const DUE: i64 = 9_000_000_000_000;

#[tokio::test]
async fn jobs_that_java_offered_are_found_by_id() {
    let fixture = Fixture::with("").await;
    // More members than one `locate` call reads.
    for n in 0..1_500 {
        fixture.java_offers(n, DUE, format!("java-{n}").as_bytes());
    }
    let queue = queue();
    let page = fixture
        .backend
        .browse(BrowseParams::new(&queue, JobState::Scheduled).limit(900).payloads(true))
        .await
        .unwrap();
    let job = &page.jobs[899].job;
    assert_eq!(job.payload, "java-899", "equal times in order of Java's ids");
    let reference = |at: usize| JobRef::new(queue.clone(), page.jobs[at].job.id);

    let found = fixture.backend.get(&reference(899)).await.unwrap().unwrap();
    let mut expected = job.clone();
    expected.created = found.job.created;
    assert_eq!(found.job, expected);
    let moved = fixture
        .backend
        .reschedule(&[Reschedule { job: reference(7), due: Due::NOW }])
        .await
        .unwrap();
    assert!(matches!(moved[0], Rescheduled::Moved(_)), "{moved:?}");
    assert_eq!(fixture.drain(10).await[0].job.payload, "java-7");
    assert_eq!(fixture.backend.cancel(&[reference(8)]).await.unwrap(), [Cancelled::Cancelled]);
    assert_eq!(fixture.backend.cancel(&[reference(8)]).await.unwrap(), [Cancelled::NotFound]);
    assert_eq!(fixture.len("ZCARD", TIMEOUT), 1_498);
}

#[tokio::test]
async fn a_name_whose_keys_lie_in_different_slots_is_refused_in_a_cluster_only() {
    let fixture = Fixture::with("").await;
    let odd = dq_core::QueueName::new("my{}q").unwrap();
    fixture.schedule(vec![job_in(odd.clone(), HOUR, "x")]).await;
    assert_eq!(fixture.len("ZCARD", "redisson_delay_queue_timeout:my{}q"), 1);
    let findings = fixture.backend.check().await;
    assert!(findings.iter().any(|finding| finding.code == "redisson.split-name"));

    let cluster = dq_servers::RedisCluster::start(3);
    let url = format!("redisson+cluster://127.0.0.1:{}", cluster.nodes()[0].port());
    let config = dq_core::config::backend_from_url(&url).unwrap();
    let backend = config.connect(&dq_core::config::Environment::default()).await.unwrap();
    let error = backend.schedule(vec![job_in(odd, HOUR, "x")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("my{}q"), "{error}");
    for name in ["q", "a{x}b"] {
        let queue = dq_core::QueueName::new(name).unwrap();
        let put = backend.schedule(vec![job_in(queue, HOUR, "x")]).await;
        assert!(matches!(put.unwrap()[0], Scheduled::Created(_)));
    }
}

#[tokio::test]
async fn an_id_that_collides_with_another_in_the_legacy_format_is_refused() {
    let fixture = Fixture::with("?format=legacy").await;
    // Legacy member ids are the lower eight bytes, here always 5.
    let with_id = |high: u128| {
        let mut job = job(HOUR, "x");
        job.id = JobId::from_bytes(((high << 64) | 5).to_be_bytes());
        job
    };
    fixture.schedule(vec![with_id(1)]).await;
    for jobs in [vec![with_id(2)], vec![job(HOUR, "y"), with_id(3), with_id(4)]] {
        let error = fixture.backend.schedule(jobs).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!(fixture.len("ZCARD", TIMEOUT), 1, "nothing of the call is stored");
    let again = fixture.backend.schedule(vec![with_id(1)]).await.unwrap();
    assert!(matches!(again[0], Scheduled::Created(_)), "{again:?}");
}

/// Two jobs with one handle: their ids differ in two bytes, which the handle combines.
fn with_one_handle(due: Due) -> [NewJob; 2] {
    let first = job(due, "first");
    let mut second = job(due, "second");
    let mut id = first.id.to_bytes();
    (id[12], id[14]) = (id[12] ^ 0x55, id[14] ^ 0x55);
    second.id = JobId::from_bytes(id);
    [first, second]
}

#[tokio::test]
async fn an_id_that_shares_its_handle_with_another_is_refused() {
    let fixture = Fixture::with("").await;
    let [first, second] = with_one_handle(Due::NOW);
    let refused = async |jobs| {
        let error = fixture.backend.schedule(jobs).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(&second.id.to_string()), "{error}");
    };
    refused(vec![first.clone(), job(HOUR, "y"), second.clone()]).await;
    assert_eq!(fixture.len("ZCARD", TIMEOUT), 0, "nothing of the call is stored");

    fixture.schedule(vec![first.clone(), first.clone()]).await;
    assert_eq!(fixture.len("ZCARD", TIMEOUT), 1, "one id twice is one job");
    // The lease makes it a native job, stored under its handle.
    assert_eq!(fixture.claim(2).await.len(), 1);
    refused(vec![second.clone()]).await;
}

/// The scripts' index is by member id: the script that stores the second does not find the first.
#[tokio::test]
async fn of_two_members_that_share_a_handle_the_one_claimed_last_gets_another_id() {
    let fixture = Fixture::with("").await;
    let jobs = with_one_handle(Due::NOW);
    for job in &jobs {
        fixture.schedule(vec![job.clone()]).await;
    }
    let claimed = fixture.claim(2).await;
    let mut payloads: Vec<_> = claimed.iter().map(|leased| &leased.job.payload[..]).collect();
    payloads.sort_unstable();
    assert_eq!(payloads, [b"first".as_slice(), b"second"]);
    let ids = claimed.iter().map(|leased| leased.job.id);
    let kept = ids.filter(|id| jobs.iter().any(|job| job.id == *id)).count();
    assert_eq!(kept, 1, "{claimed:?}");
    let done = claimed.iter().map(|job| Settlement::new(job.lease(), Verdict::Done));
    fixture.backend.settle(&done.collect::<Vec<_>>()).await.unwrap();
    let stats = fixture.backend.stats(&[queue()]).await.unwrap().remove(0);
    assert_eq!(stats.stored(), 0);
}

#[tokio::test]
async fn a_native_job_that_a_call_has_replaced_and_stored_again_is_there() {
    let fixture = Fixture::with("").await;
    let x = keyed(Due::NOW, "x", "k").on_conflict(OnConflict::Replace);
    fixture.schedule(vec![x.clone()]).await;
    let leased = fixture.claim(1).await.remove(0);
    settle(&*fixture.backend, &leased, Verdict::Snooze(Due::from(HOUR))).await;
    let y = keyed(Due::NOW, "y", "k").on_conflict(OnConflict::Replace);
    let jobs = vec![y.clone(), x.clone(), x.clone()];
    let answers = fixture.backend.schedule(jobs).await.unwrap();
    let [Scheduled::Replaced(first), Scheduled::Replaced(second), Scheduled::Created(third)] =
        answers[..]
    else {
        panic!("{answers:?}")
    };
    assert_eq!((first.id, second.id, third), (y.id, x.id, second));
    let claimed = fixture.drain(10).await;
    assert_eq!(claimed.iter().map(|leased| leased.job.id).collect::<Vec<_>>(), [x.id]);
}
