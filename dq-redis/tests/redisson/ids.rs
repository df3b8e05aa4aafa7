//! Jobs are found by id, whoever made them and whatever is noted about them.

use dq_core::{
    BrowseParams, Cancelled, JobRef, JobState, NewJob, Reschedule, Rescheduled, Scheduled,
};

use crate::rig::{LATER, NOTES, Rig, TIMEOUT, job, queue};

/// Far ahead, the same for all.
const DUE: i64 = 9_000_000_000_000;

#[tokio::test]
async fn javas_jobs_have_ids_by_which_they_are_found() {
    let rig = Rig::with("").await;
    for n in 0..1_500 {
        rig.java_offers(n, DUE, format!("java-{n}").as_bytes());
    }
    let queue = queue();
    let page = rig
        .backend
        .browse(BrowseParams { queue: &queue, state: JobState::Scheduled, after: None, limit: 900 })
        .await
        .unwrap();
    let job = &page.jobs[899].job;
    assert_eq!(job.payload, "java-899", "equal times in order of Java's ids");
    let of = |at: usize| JobRef::new(queue.clone(), page.jobs[at].job.id);

    let found = rig.backend.get(&of(899)).await.unwrap().unwrap();
    assert_eq!(found.job, dq_core::Job { created: found.job.created, ..job.clone() });
    let moved =
        rig.backend.reschedule(&[Reschedule { job: of(7), due: dq_core::Due::NOW }]).await.unwrap();
    assert!(matches!(moved[0], Rescheduled::Moved(_)), "{moved:?}");
    assert_eq!(rig.drain(10).await[0].job.payload, "java-7");
    assert_eq!(rig.backend.cancel(&[of(8)]).await.unwrap(), [Cancelled::Cancelled]);
    assert_eq!(rig.backend.cancel(&[of(8)]).await.unwrap(), [Cancelled::NotFound]);
    assert_eq!(rig.len("ZCARD", TIMEOUT), 1_498);
}

#[tokio::test]
async fn plain_jobs_need_no_note() {
    let rig = Rig::with("?index=keyed").await;
    let jobs: Vec<NewJob> = (0..1_200).map(|n| job(LATER, &n.to_string())).collect();
    rig.backend.schedule(jobs.clone()).await.unwrap();
    assert_eq!(rig.len("HLEN", NOTES), 0);
    let of = |at: usize| JobRef::new(queue(), jobs[at].id);

    let again = rig.backend.schedule(vec![jobs[3].clone()]).await.unwrap();
    assert!(matches!(again[0], Scheduled::Kept(_)), "{again:?}");
    let shown = rig.backend.get(&of(1_100)).await.unwrap().unwrap();
    assert_eq!((shown.job.id, &shown.job.payload[..]), (jobs[1_100].id, &b"1100"[..]));
    assert_eq!(rig.backend.cancel(&[of(5)]).await.unwrap(), [Cancelled::Cancelled]);
    assert_eq!(rig.len("ZCARD", TIMEOUT), 1_199);
    // The id stands in the member, so it is the job's after a claim too.
    let now = dq_core::Due::NOW;
    rig.backend.reschedule(&[Reschedule { job: of(9), due: now }]).await.unwrap();
    assert_eq!(rig.drain(1).await[0].job.id, jobs[9].id);
}

#[tokio::test]
async fn names_with_braces_are_refused_only_where_they_would_split() {
    let rig = Rig::with("").await;
    let odd = dq_core::QueueName::new("my{}q").unwrap();
    let put = rig.backend.schedule(vec![NewJob { queue: odd.clone(), ..job(LATER, "x") }]).await;
    assert!(put.is_ok(), "a single server has no slots");
    assert_eq!(rig.len("ZCARD", "redisson_delay_queue_timeout:my{}q"), 1);
    let code = "redisson.split-name";
    assert!(rig.backend.check().await.iter().any(|finding| finding.code == code));

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
async fn an_id_that_the_legacy_format_cannot_tell_from_another_is_refused() {
    let rig = Rig::with("?format=legacy").await;
    let with_id = |high: u128| NewJob {
        id: dq_core::JobId::from_bytes(((high << 64) | 5).to_be_bytes()),
        ..job(LATER, "x")
    };
    rig.backend.schedule(vec![with_id(1)]).await.unwrap();
    for jobs in [vec![with_id(2)], vec![job(LATER, "y"), with_id(3), with_id(4)]] {
        let error = rig.backend.schedule(jobs).await.unwrap_err();
        assert_eq!(error.kind(), dq_core::ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!(rig.len("ZCARD", TIMEOUT), 1, "and nothing of the call is stored");
    let again = rig.backend.schedule(vec![with_id(1)]).await.unwrap();
    assert!(matches!(again[0], Scheduled::Kept(_)), "{again:?}");
}
