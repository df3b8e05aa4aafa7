//! Ids and queue names: jobs that Java offered are found by id; ids that collide in the legacy
//! format are refused; in a cluster, so are queue names whose keys lie in different slots.

use dq_core::{
    BrowseParams, Cancelled, JobRef, JobState, NewJob, Reschedule, Rescheduled, Scheduled,
};

use crate::fixture::{Fixture, LATER, TIMEOUT, job, queue};

/// A due time in the far future, the same for all jobs.
const DUE: i64 = 9_000_000_000_000;

#[tokio::test]
async fn jobs_that_java_offered_are_found_by_id() {
    let fixture = Fixture::with("").await;
    // More members than one call of `locate` reads.
    for n in 0..1_500 {
        fixture.java_offers(n, DUE, format!("java-{n}").as_bytes());
    }
    let queue = queue();
    let page = fixture
        .backend
        .browse(BrowseParams { queue: &queue, state: JobState::Scheduled, after: None, limit: 900 })
        .await
        .unwrap();
    let job = &page.jobs[899].job;
    assert_eq!(job.payload, "java-899", "equal times in order of Java's ids");
    let reference = |at: usize| JobRef::new(queue.clone(), page.jobs[at].job.id);

    let found = fixture.backend.get(&reference(899)).await.unwrap().unwrap();
    assert_eq!(found.job, dq_core::Job { created: found.job.created, ..job.clone() });
    let moved = fixture
        .backend
        .reschedule(&[Reschedule { job: reference(7), due: dq_core::Due::NOW }])
        .await
        .unwrap();
    assert!(matches!(moved[0], Rescheduled::Moved(_)), "{moved:?}");
    assert_eq!(fixture.drain(10).await[0].job.payload, "java-7");
    assert_eq!(fixture.backend.cancel(&[reference(8)]).await.unwrap(), [Cancelled::Cancelled]);
    assert_eq!(fixture.backend.cancel(&[reference(8)]).await.unwrap(), [Cancelled::NotFound]);
    // One was done, one was cancelled.
    assert_eq!(fixture.len("ZCARD", TIMEOUT), 1_498);
}

#[tokio::test]
async fn a_name_whose_keys_lie_in_different_slots_is_refused_in_a_cluster_only() {
    let fixture = Fixture::with("").await;
    let odd = dq_core::QueueName::new("my{}q").unwrap();
    let put =
        fixture.backend.schedule(vec![NewJob { queue: odd.clone(), ..job(LATER, "x") }]).await;
    assert!(put.is_ok(), "a single server has no slots");
    assert_eq!(fixture.len("ZCARD", "redisson_delay_queue_timeout:my{}q"), 1);
    let code = "redisson.split-name";
    assert!(fixture.backend.check().await.iter().any(|finding| finding.code == code));

    let cluster = dq_servers::RedisCluster::start(3);
    let url = format!("redisson+cluster://127.0.0.1:{}", cluster.nodes()[0].port());
    let backend = dq_core::config::backend_from_url(&url)
        .unwrap()
        .connect(&dq_core::config::Environment::default())
        .await
        .unwrap();
    let put = backend.schedule(vec![NewJob { queue: odd, ..job(LATER, "x") }]).await;
    let error = put.unwrap_err();
    assert_eq!(error.kind(), dq_core::ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("my{}q"), "{error}");
    for name in ["q", "a{x}b"] {
        let queue = dq_core::QueueName::new(name).unwrap();
        let put = backend.schedule(vec![NewJob { queue, ..job(LATER, "x") }]).await;
        assert!(matches!(put.unwrap()[0], Scheduled::Created(_)));
    }
}

#[tokio::test]
async fn an_id_that_collides_with_another_in_the_legacy_format_is_refused() {
    let fixture = Fixture::with("?format=legacy").await;
    // Legacy member ids are the lower eight bytes, here always 5.
    let with_id = |high: u128| NewJob {
        id: dq_core::JobId::from_bytes(((high << 64) | 5).to_be_bytes()),
        ..job(LATER, "x")
    };
    fixture.backend.schedule(vec![with_id(1)]).await.unwrap();
    for jobs in [vec![with_id(2)], vec![job(LATER, "y"), with_id(3), with_id(4)]] {
        let error = fixture.backend.schedule(jobs).await.unwrap_err();
        assert_eq!(error.kind(), dq_core::ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!(fixture.len("ZCARD", TIMEOUT), 1, "nothing of the call is stored");
    let again = fixture.backend.schedule(vec![with_id(1)]).await.unwrap();
    assert!(matches!(again[0], Scheduled::Kept(_)), "{again:?}");
}
