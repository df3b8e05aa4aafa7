//! Schedules that are refused, and store nothing.

use std::sync::Arc;

use dq_core::{Capabilities, DurationExt, ErrorKind};

use crate::common::offering::Offering;
use crate::recurring::fixture::{World, hourly};

#[tokio::test]
async fn an_invalid_schedule_is_refused_and_not_stored() {
    let world = World::new();
    let program = world.start(None).await;
    let schedule = || program.schedule();
    let long = "n".repeat(201);
    for (refused, part) in [
        (schedule().upsert().await, "cron is missing"),
        (schedule().every(0.seconds()).upsert().await, "interval"),
        (schedule().cron("0 0 31 2 *", "UTC").upsert().await, "no such date"),
        (schedule().cron("@daily", "Mars").upsert().await, "Mars"),
        (schedule().cron("0 0 12 1 1 * 2020", "UTC").upsert().await, "no time in the future"),
        (program.dq.recurring_in("dq.x", "n").every(1.hours()).upsert().await, "reserved"),
        (program.dq.recurring_in("Q", "").every(1.hours()).upsert().await, "empty"),
        (program.dq.recurring_in("Q", &long).every(1.hours()).upsert().await, "201 bytes"),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    assert!(program.dq.schedules().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_store_that_lacks_a_capability_refuses_schedules() {
    type Remove = fn(&mut Capabilities);
    let lacks: [(&str, Remove); 5] = [
        ("keys", |it| it.keys = false),
        ("reading", |it| it.browse = false),
        ("cancel", |it| it.cancel = false),
        ("next steps", |it| it.again = false),
        ("remembering", |it| it.history = false),
    ];
    for (name, remove) in lacks {
        let world = World::new();
        let mut capabilities = world.store.capabilities();
        remove(&mut capabilities);
        let store = Arc::new(Offering { store: world.store.clone(), capabilities });
        let program = world.start_over(store.clone(), None).await.unwrap();
        let called = program.schedule().every(1.hours()).upsert().await.unwrap_err();
        let declared = world.start_over(store, Some(hourly())).await;
        for error in [called, declared.err().unwrap()] {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
            assert!(error.to_string().contains(name), "{name}: {error}");
        }
    }
}
