//! Reads never write, even with expired leases.

use std::time::Duration;

use crate::common::{Fixture, MINUTE, WriteLock, claim, open_store, queue, stats};
use bytes::Bytes;
use dq_core::{
    Backend, BrowseParams, Clock, Due, ErrorKind, JobRef, JobState, JobView, NewJob, Page,
};
use dq_sqlite::SqliteBackend;

async fn browse(backend: &SqliteBackend, state: JobState) -> Vec<JobView> {
    let (mut jobs, mut after) = (Vec::new(), None);
    loop {
        let queue = queue();
        let params = BrowseParams::new(&queue, state).after(after).limit(2).payloads(true);
        let Page { jobs: page, next, .. } = backend.browse(params).await.unwrap();
        assert!(page.len() <= 2);
        jobs.extend(page);
        after = next;
        if after.is_none() {
            return jobs;
        }
    }
}

#[tokio::test]
async fn expired_leases_are_read_as_due_jobs_without_a_write() {
    let fixture = Fixture::new();
    let backend = fixture.open_with(|config| config.busy_timeout = Duration::ZERO).await;
    let second = Duration::from_secs(1);
    let expiring: Vec<NewJob> = (0..3_u32).map(|n| fixture.job(n * second)).collect();
    let _ = backend.schedule(expiring.clone()).await.unwrap();
    fixture.clock.advance(2 * second);
    assert_eq!(claim(&backend, 3).await.jobs.len(), 3);
    // Due between the expired leases, and at the same time as the last one.
    let due = fixture.clock.now();
    let waiting = [Due::At(due - second / 2), Due::At(due), Due::from(10 * MINUTE)];
    let waiting = waiting.map(|due| fixture.job(due));
    let _ = backend.schedule(waiting.to_vec()).await.unwrap();
    assert_eq!(stats(&backend).await.running, 3);
    let lock = WriteLock::acquire(&fixture);
    fixture.clock.advance(MINUTE);

    let counts = stats(&backend).await;
    assert_eq!((counts.ready, counts.running, counts.scheduled), (5, 0, 1));
    assert_eq!(counts.next_due, Some(due - 2 * second));
    let ready = browse(&backend, JobState::Ready).await;
    let order = [&expiring[0], &expiring[1], &waiting[0], &expiring[2], &waiting[1]];
    assert_eq!(ready.iter().map(|view| view.job.id).collect::<Vec<_>>(), order.map(|job| job.id));
    for (n, view) in ready.iter().enumerate() {
        let expired = u32::from(n != 2 && n != 4);
        assert_eq!((view.job.losses, view.job.deliveries), (expired, expired), "{n}");
        assert_eq!((view.state, view.leased_until), (JobState::Ready, None));
    }
    assert!(browse(&backend, JobState::Running).await.is_empty());
    assert_eq!(browse(&backend, JobState::Scheduled).await.len(), 1);
    let view = backend.get(&JobRef::new(queue(), expiring[1].id)).await.unwrap().unwrap();
    assert_eq!(view, ready[1]);
    let findings = backend.check().await;
    assert!(findings.iter().all(|finding| finding.code != "sqlite.unreadable"), "{findings:?}");

    // The write that returns these jobs to their queue does not change the listing.
    lock.release();
    let _ = backend.schedule(Vec::new()).await.unwrap();
    assert_eq!(browse(&backend, JobState::Ready).await, ready);
    assert_eq!(stats(&backend).await, counts);
}

#[tokio::test]
async fn an_expired_lease_of_a_job_that_is_not_due_any_more_is_scheduled() {
    let (fixture, backend) = open_store().await;
    let job = fixture.job(Due::NOW);
    let _ = backend.schedule(vec![job.clone()]).await.unwrap();
    assert_eq!(claim(&backend, 1).await.jobs.len(), 1);
    // As if the clock had been ahead when the job was scheduled.
    let due = fixture.clock.now() + 5 * MINUTE;
    fixture.execute(&format!("UPDATE dq_job SET due = {}", due.as_millis()));
    fixture.clock.advance(MINUTE);
    let counts = stats(&backend).await;
    assert_eq!((counts.scheduled, counts.ready, counts.next_due), (1, 0, Some(due)));
    assert_eq!(browse(&backend, JobState::Scheduled).await[0].job.losses, 1);
    assert!(browse(&backend, JobState::Ready).await.is_empty());
    let view = backend.get(&JobRef::new(queue(), job.id)).await.unwrap().unwrap();
    assert_eq!(view.state, JobState::Scheduled);
}

#[tokio::test]
async fn a_full_file_with_expired_leases_can_be_read() {
    let fixture = Fixture::new();
    let backend = fixture.open_with(|config| config.size_limit_mib = Some(1)).await;
    let leases = 2_000;
    let _ = backend.schedule((0..leases).map(|_| fixture.job(Due::NOW)).collect()).await.unwrap();
    assert_eq!(claim(&backend, leases).await.jobs.len(), leases);
    let mut waiting = 0;
    for bytes in [20_000, 1_000, 1] {
        let large = || fixture.job(10 * MINUTE).payload(Bytes::from(vec![7; bytes]));
        let error = loop {
            match backend.schedule(vec![large()]).await {
                Ok(_) => waiting += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Full);
    }
    fixture.clock.advance(MINUTE);

    let counts = stats(&backend).await;
    assert_eq!((counts.ready, counts.scheduled, counts.running), (2_000, waiting, 0));
    let queue = queue();
    let params = BrowseParams::new(&queue, JobState::Ready).limit(500).payloads(true);
    assert_eq!(backend.browse(params).await.unwrap().jobs.len(), 500);
    let findings = backend.check().await;
    assert!(findings.iter().all(|finding| finding.code != "sqlite.unreadable"), "{findings:?}");
}
