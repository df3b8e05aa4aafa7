//! Claims from many queues, few of which have jobs.

use std::time::Duration;

use crate::common::{Fixture, MINUTE, open_store, settle};
use dq_core::{Backend, ClaimParams, Claimed, Due, NewJob, Operation, QueueName, Verdict, Want};
use dq_sqlite::SqliteBackend;

fn name(number: usize) -> QueueName {
    QueueName::new(format!("queue-{number}")).unwrap()
}

fn job(fixture: &Fixture, number: usize, due: impl Into<Due>) -> NewJob {
    let mut value = fixture.job(due);
    value.queue = name(number);
    value
}

async fn claim_from(
    backend: &SqliteBackend,
    queues: impl IntoIterator<Item = usize>,
    max: usize,
    limit: usize,
) -> Claimed {
    let want = |number| Want::new(name(number), max, MINUTE);
    let wants: Vec<Want> = queues.into_iter().map(want).collect();
    backend.claim(ClaimParams::new(&wants, limit, "test")).await.unwrap()
}

fn queues(claimed: &Claimed) -> Vec<usize> {
    let number = |name: &str| name.strip_prefix("queue-").unwrap().parse().unwrap();
    claimed.jobs.iter().map(|leased| number(leased.job.queue.as_str())).collect()
}

#[tokio::test]
async fn jobs_of_few_queues_are_found_among_many() {
    let (fixture, backend) = open_store().await;
    // Every queue exists and is empty.
    let all = (0..300).map(|number| job(&fixture, number, Due::NOW)).collect();
    let _ = backend.schedule(all).await.unwrap();
    for leased in claim_from(&backend, 0..300, 1, 300).await.jobs {
        settle(&backend, &leased, Verdict::Done).await;
    }
    assert_eq!(claim_from(&backend, 0..300, 1, 300).await.next_due, None);

    let later = Duration::from_secs(7);
    for number in [290, 3, 150, 151, 7] {
        let _ = backend.schedule(vec![job(&fixture, number, Due::NOW)]).await.unwrap();
    }
    let _ = backend.schedule(vec![job(&fixture, 200, later)]).await.unwrap();
    let paused = Operation::Pause { queue: &name(150) };
    assert_eq!(backend.operate(paused).await.unwrap().affected, 1);

    // In want order, without the paused queue and unwanted queues.
    let wanted = (0..400).rev().filter(|number| *number != 7);
    let claimed = claim_from(&backend, wanted.clone(), 1, 2).await;
    assert_eq!(queues(&claimed), [290, 151]);
    assert_eq!(claimed.next_due, Some(claimed.now), "the limit left one job");
    let claimed = claim_from(&backend, wanted.clone(), 1, 300).await;
    assert_eq!(queues(&claimed), [3]);
    assert_eq!(claimed.next_due, Some(claimed.now + later));
    let claimed = claim_from(&backend, [0, 150, 200, 299], 9, 9).await;
    assert_eq!((queues(&claimed).len(), claimed.next_due), (0, Some(claimed.now + later)));

    // Leases count in wanted queues, but not in other or paused ones.
    fixture.clock.advance(later);
    assert_eq!(queues(&claim_from(&backend, [200, 7], 1, 9).await), [200, 7]);
    let claimed = claim_from(&backend, [290, 150], 9, 9).await;
    assert_eq!(claimed.next_due, Some(claimed.now + MINUTE - later));
    let claimed = claim_from(&backend, [7, 200, 0], 9, 9).await;
    assert_eq!(claimed.next_due, Some(claimed.now + MINUTE));
    let pause_leased = Operation::Pause { queue: &name(290) };
    assert_eq!(backend.operate(pause_leased).await.unwrap().affected, 1);
    let claimed = claim_from(&backend, [290, 150], 9, 9).await;
    assert_eq!(claimed.next_due, None);
    let _ = backend.operate(Operation::Resume { queue: &name(290) }).await.unwrap();
    fixture.clock.advance(MINUTE);
    let mut expired = queues(&claim_from(&backend, 0..300, 1, 300).await);
    expired.sort_unstable();
    assert_eq!(expired, [3, 7, 151, 200, 290]);
}

#[tokio::test]
async fn a_claim_sees_the_commits_and_queues_of_other_processes_at_once() {
    let fixture = Fixture::new();
    let (one, other) = (fixture.open().await, fixture.open().await);
    let all = (0..100).map(|number| job(&fixture, number, 10 * MINUTE)).collect();
    let _ = one.schedule(all).await.unwrap();
    for round in 0..3 {
        assert!(claim_from(&one, 0..100, 1, 9).await.jobs.is_empty());
        let _ = other.schedule(vec![job(&fixture, round, Due::NOW)]).await.unwrap();
        assert_eq!(queues(&claim_from(&one, 0..100, 1, 9).await), [round]);
        // Our own commit after a foreign one does not hide it.
        let _ = other.schedule(vec![job(&fixture, 8, Due::NOW)]).await.unwrap();
        let _ = one.schedule(vec![job(&fixture, 9, 10 * MINUTE)]).await.unwrap();
        assert_eq!(queues(&claim_from(&one, 0..100, 1, 9).await), [8], "in round {round}");
    }
}
