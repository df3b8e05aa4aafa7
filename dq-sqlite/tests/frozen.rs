//! The stored form of what version 5 of the tables added: ended jobs, pinned ids, notes of jobs and
//! announcements. A file that was written once is read as it was then.

mod common;

use std::fs;
use std::time::Duration;

use common::{Fixture, MINUTE, claim, queue, settle, stats};
use dq_core::{
    Announcement, Backend, BrowseParams, Clock, DeadKind, DeadReason, Due, Ending, FencingToken,
    JobId, JobKey, JobRef, JobState, Lease, NewJob, Scheduled, Settled, Settlement, Verdict,
};

/// Written by [`write_the_file`] at version 5.
const FILE: &[u8] = include_bytes!("fixtures/format-5.db");

const DAY: Duration = Duration::from_secs(86_400);

fn id(last: u8) -> JobId {
    format!("01900000-0000-7000-8000-0000000000{last:02x}").parse().unwrap()
}

fn job(last: u8) -> NewJob {
    let key = JobKey::new(format!("order-{last}")).unwrap();
    let mut job = NewJob::new(id(last), queue(), Due::NOW, vec![last].into()).key(key);
    job.headers.insert("tenant", "acme");
    job
}

/// Writes `target/format-5.db`. Another version would write another file: keep this one.
#[tokio::test]
#[ignore = "writes the file that the other test reads"]
async fn write_the_file() {
    let fixture = Fixture::new();
    let backend = fixture.open().await;
    let jobs = vec![job(1).remember(365 * DAY), job(2), job(3), job(4), job(5)];
    let _ = backend.schedule(jobs).await.unwrap();
    fixture.clock.advance(MINUTE / 60);
    let leased = claim(&backend, 5).await.jobs;
    fixture.clock.advance(MINUTE / 60);
    let dead = DeadReason::new(DeadKind::Rejected, "no such host");
    for leased in &leased {
        let verdict = match leased.job.id {
            job if job == id(1) => Verdict::Done,
            job if job == id(2) => Verdict::skip("it is paid"),
            job if job == id(3) => Verdict::retry(Due::After(MINUTE), "connect refused"),
            job if job == id(5) => Verdict::Dead { reason: dead.clone(), failed: true },
            _ => continue,
        };
        settle(&backend, leased, verdict).await;
    }
    let announcement = Announcement::new("web-1", b"{\"host\":\"a\"}".to_vec(), 365 * DAY);
    backend.announce(announcement).await.unwrap();
    println!(
        "the token of the running job: {:?}",
        leased.iter().find(|job| job.job.id == id(4)).unwrap().token
    );
    backend.close().await.unwrap();
    let target = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/format-5.db");
    fs::copy(fixture.path(), target).unwrap();
}

#[tokio::test]
async fn ended_jobs_pins_notes_and_announcements_are_read() {
    let fixture = Fixture::new();
    fs::write(fixture.path(), FILE).unwrap();
    let started = fixture.clock.now().as_millis();
    fixture.clock.advance(MINUTE / 20);
    let backend = fixture.open().await;
    let counts = stats(&backend).await;
    assert_eq!((counts.scheduled, counts.running, counts.dead), (1, 1, 1));
    let totals = counts.totals.unwrap();
    assert_eq!((totals.done, totals.skipped), (1, 1));
    let get = async |last| backend.get(&JobRef::new(queue(), id(last))).await.unwrap().unwrap();

    let done = get(1).await;
    let ended = done.ended.unwrap();
    assert_eq!(
        (ended.ending, ended.reason, ended.at.as_millis()),
        (Ending::Done, None, started + 2_000)
    );
    assert_eq!((done.job.attempts, done.job.deliveries), (0, 1));
    assert_eq!((done.worker.as_deref(), done.job.key.unwrap().as_str()), (Some("test"), "order-1"));
    assert_eq!(done.leased_since.unwrap().as_millis(), started + 1_000);
    let skipped = get(2).await.ended.unwrap();
    assert_eq!((skipped.ending, skipped.reason.as_deref()), (Ending::Skipped, Some("it is paid")));
    let queue = queue();
    let listed = backend.browse(BrowseParams::new(&queue, JobState::Ended)).await.unwrap();
    assert_eq!(listed.jobs.len(), 2);

    let retried = get(3).await;
    assert_eq!((retried.state, retried.job.attempts), (JobState::Scheduled, 1));
    assert_eq!(retried.last_error.as_deref(), Some("connect refused"));
    assert_eq!(
        (retried.job.headers.get("tenant"), &retried.job.payload[..]),
        (Some("acme"), &[3][..])
    );
    let running = get(4).await;
    assert_eq!(running.worker.as_deref(), Some("test"));
    assert_eq!(running.leased_since.unwrap().as_millis(), started + 1_000);
    let (reason, _) = get(5).await.dead.unwrap();
    assert_eq!((reason.kind, &*reason.message), (DeadKind::Rejected, "no such host"));

    let again = backend.schedule(vec![job(1)]).await.unwrap();
    assert!(matches!(again[..], [Scheduled::Ended(_)]), "its id is pinned: {again:?}");
    let runners = backend.runners().await.unwrap();
    assert_eq!(
        (runners[0].name.as_str(), &runners[0].info[..]),
        ("web-1", &b"{\"host\":\"a\"}"[..])
    );

    // The lease of the version that wrote the file is settled.
    let lease = Lease { queue: queue.clone(), job: id(4), token: TOKEN };
    let settled = backend.settle(&[Settlement::new(lease, Verdict::Done)]).await.unwrap();
    assert_eq!(settled, [Settled::Accepted]);
}

/// The token of the running job.
const TOKEN: FencingToken = FencingToken(1_704_067_201_000_003);
