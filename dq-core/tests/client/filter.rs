//! Filtered listings.

use std::collections::HashSet;

use dq_core::{Clock, DurationExt, ErrorKind, Filter, JobState, Order};

use crate::client::{memory, schedule};

#[tokio::test]
async fn a_filtered_listing_has_each_matching_job_once_whatever_the_limit() {
    let (queue, _) = memory().await;
    for number in 0..2_500 {
        let key = if number % 7 == 0 { format!("a-{number}") } else { format!("b-{number}") };
        schedule(&queue, &key, number + 1).await;
    }
    for (limit, order) in [(1_000, Order::Ascending), (30, Order::Descending)] {
        let (mut keys, mut next) = (Vec::new(), None);
        loop {
            let filter = Filter::new().key_prefix("a-");
            let listing = queue.browse(JobState::Scheduled).limit(limit).order(order);
            let page = listing.filter(filter).payloads(false).after(next).await.unwrap();
            assert!(page.jobs.len() <= limit);
            assert!(page.jobs.iter().all(|view| view.job.payload.is_empty()));
            keys.extend(page.jobs.into_iter().map(|view| view.job.key.unwrap()));
            next = page.next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!(keys.len(), 358);
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), 358);
        let last = if order == Order::Ascending { &keys[357] } else { &keys[0] };
        assert_eq!(last.as_str(), "a-2499");
    }
}

#[tokio::test]
async fn a_page_without_a_match_has_a_cursor_if_there_is_more_to_compare() {
    let (queue, _) = memory().await;
    // One call compares at most 5,000 jobs: the match is in the second.
    for number in 0..6_000 {
        schedule(&queue, &number.to_string(), number).await;
    }
    let listing =
        || queue.browse(JobState::Scheduled).filter(Filter::new().key_prefix("5999")).limit(1);
    let first = listing().await.unwrap();
    assert!(first.jobs.is_empty());
    let second = listing().after(first.next.expect("more to compare")).await.unwrap();
    assert_eq!(second.jobs[0].job.payload, "payload", "payloads are read for matches");
    assert_eq!(second.next, None);
}

#[tokio::test]
async fn jobs_are_found_by_due_time_id_and_error() {
    let (queue, clock) = memory().await;
    let now = clock.now();
    let mut receipts = Vec::new();
    for minutes in 1..=9 {
        receipts.push(schedule(&queue, &minutes.to_string(), minutes).await);
    }
    let keys = async |filter: Filter| {
        let page = queue.browse(JobState::Scheduled).filter(filter).await.unwrap();
        assert_eq!(page.next, None);
        let keys = page.jobs.into_iter().map(|view| view.job.key.unwrap().to_string());
        keys.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(keys(Filter::new()).await, "1 2 3 4 5 6 7 8 9");
    assert_eq!(keys(Filter::new().due(now + 3.minutes()..now + 6.minutes())).await, "3 4 5");
    assert_eq!(keys(Filter::new().due(..=now + 2.minutes())).await, "1 2");
    assert_eq!(keys(Filter::new().id(receipts[4].id)).await, "5");
    assert_eq!(keys(Filter::new().id(receipts[4].id).key_prefix("6")).await, "");
    assert_eq!(keys(Filter::new().error("refused")).await, "");
}

#[tokio::test]
async fn a_lookup_by_id_keeps_the_options_of_a_listing() {
    let (queue, _) = memory().await;
    let id = schedule(&queue, "1", 1).await.id;
    let listing = || queue.browse(JobState::Scheduled).filter(Filter::new().id(id));
    for payloads in [false, true] {
        let page = listing().payloads(payloads).await.unwrap();
        assert_eq!(page.jobs[0].job.payload.is_empty(), !payloads);
    }
    for limit in [0, 1_001] {
        let error = listing().limit(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}
