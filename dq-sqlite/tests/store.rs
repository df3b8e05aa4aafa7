//! Claims without due jobs, and invalid rows.

use std::time::Duration;

use crate::common::{Fixture, MINUTE, WriteLock, claim, open_store, queue, stats};
use dq_core::{Backend, DeadKind, Due, JobRef};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_claim_without_due_jobs_needs_no_write_lock() {
    let fixture = Fixture::new();
    let backend = fixture.open_with(|config| config.busy_timeout = Duration::ZERO).await;
    let _ = backend.schedule(vec![fixture.job(SECOND), fixture.job(Due::NOW)]).await.unwrap();
    assert_eq!(claim(&backend, 1).await.jobs.len(), 1);
    let lock = WriteLock::acquire(&fixture);
    let claimed = claim(&backend, 10).await;
    assert!(claimed.jobs.is_empty());
    assert_eq!(claimed.next_due, Some(claimed.now + SECOND));
    fixture.clock.advance(MINUTE);
    let polled = claim(&backend, 0).await;
    assert_eq!((polled.jobs.len(), polled.next_due), (0, Some(claimed.now)));
    lock.release();
    assert_eq!(claim(&backend, 10).await.jobs.len(), 2);
}

#[tokio::test]
async fn jobs_with_invalid_rows_are_quarantined_with_their_payload() {
    let (fixture, backend) = open_store().await;
    let (bad, good) = (fixture.job(Due::NOW), fixture.job(Due::NOW));
    let _ = backend.schedule(vec![bad.clone(), good.clone()]).await.unwrap();
    let conn = fixture.conn();
    conn.execute("UPDATE dq_job SET headers = 'nonsense' WHERE seq = 1", []).unwrap();
    let claimed = claim(&backend, 10).await;
    assert_eq!(claimed.jobs.len(), 1);
    assert_eq!(claimed.jobs[0].job.id, good.id);
    let [(job, reason)] = &claimed.quarantined[..] else { panic!("{claimed:?}") };
    assert_eq!((job.id, &job.payload, reason.kind), (bad.id, &bad.payload, DeadKind::Quarantined));
    let view = backend.get(&JobRef::new(queue(), bad.id)).await.unwrap().unwrap();
    assert_eq!(view.dead.unwrap().0.kind, DeadKind::Quarantined);
    assert_eq!(view.job.payload, bad.payload);
    let _ = stats(&backend).await;
    let quarantined = async || {
        let findings = backend.check().await;
        findings.into_iter().find(|finding| finding.code == "sqlite.quarantined")
    };
    let cause = quarantined().await.unwrap().cause;
    assert!(cause.starts_with(&format!("job {} could not be read", bad.id)), "{cause}");
    conn.execute("UPDATE dq_dead SET died = died - 90000000", []).unwrap();
    assert_eq!(quarantined().await, None, "it was 25 hours ago; a finding lasts a day");
}
