//! Late policies: what happens to a job that starts too late.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dq::config::{LateAction, LatePolicy, QueueSettings};
use dq::prelude::*;
use dq::{DeadKind, Ending, Event};

use crate::{Order, Shop, clocked};

#[delay_handler("PUNCTUAL", late(after = "5m", then = "skip"))]
async fn punctual(State(shop): State<Shop>, order: Order) {
    shop.write(format!("order {}", order.id));
}

#[delay_handler("ESCALATIONS")]
async fn escalations(ctx: JobContext, State(shop): State<Shop>, order: Order) {
    let (key, header) = (ctx.key().map(dq::JobKey::as_str), ctx.headers().get("a"));
    shop.write(format!("escalated order {} of {key:?}, a: {header:?}", order.id));
}

struct Outage {
    dq: Dq,
    shop: Shop,
    /// The lateness and the action of each late job that was observed.
    late: Arc<Mutex<Vec<(Duration, String)>>>,
    scheduled: dq::Scheduled,
}

impl Outage {
    async fn of(length: Duration, policy: Option<LatePolicy>) -> Self {
        let (clock, dq) = clocked().await;
        let scheduled = dq
            .schedule::<punctual>(Order { id: 7 })
            .key("k")
            .max_attempts(7)
            .header("a", "b")
            .await;
        let scheduled = scheduled.unwrap();
        clock.advance(length);
        let (shop, late) = (Shop::default(), Arc::<Mutex<Vec<_>>>::default());
        let seen = late.clone();
        let mut runner = dq.runner().only(["PUNCTUAL", "ESCALATIONS"]).state(shop.clone());
        if let Some(policy) = policy {
            runner = runner.queue("PUNCTUAL", QueueSettings::new().late(policy));
        }
        let runner = runner.observer(move |event: &Event<'_>| {
            if let Event::Late { lateness, then, .. } = event {
                seen.lock().unwrap().push((*lateness, then.to_string()));
            }
        });
        runner.build().unwrap().run_due().await.unwrap();
        Self { dq, shop, late, scheduled }
    }

    fn late(&self) -> Vec<(Duration, String)> {
        self.late.lock().unwrap().clone()
    }
}

fn late(then: &str) -> Option<LatePolicy> {
    Some(LatePolicy::new(5.minutes(), then.parse::<LateAction>().unwrap()))
}

#[tokio::test]
async fn a_job_that_starts_in_time_runs() {
    for length in [Duration::ZERO, 5.minutes()] {
        let outage = Outage::of(length, None).await;
        assert_eq!(outage.shop.lines(), ["order 7"]);
        assert!(outage.late().is_empty());
    }
}

#[tokio::test]
async fn a_late_job_is_skipped_with_its_reason() {
    let outage = Outage::of(5.minutes() + 1.seconds(), None).await;
    assert!(outage.shop.lines().is_empty());
    assert_eq!(outage.late(), [(301.seconds(), "skip".to_owned())]);
    let view = outage.dq.get::<punctual>(&outage.scheduled).await.unwrap().unwrap();
    let ended = view.ended.unwrap();
    assert_eq!(ended.ending, Ending::Skipped);
    assert_eq!(ended.reason.unwrap(), "started 5m 1s after its due time; the limit is 5m");
    let totals = outage.dq.queue("PUNCTUAL").unwrap().stats().await.unwrap().totals.unwrap();
    assert_eq!(totals.skipped, 1, "the statistics count it");
}

#[tokio::test]
async fn a_late_job_runs_or_is_dead_as_the_settings_say() {
    let outage = Outage::of(8.hours(), late("run")).await;
    assert_eq!(outage.shop.lines(), ["order 7"]);
    assert_eq!(outage.late(), [(8.hours(), "run".to_owned())]);

    let outage = Outage::of(8.hours(), late("dead")).await;
    assert!(outage.shop.lines().is_empty());
    let view = outage.dq.get::<punctual>(&outage.scheduled).await.unwrap().unwrap();
    assert_eq!(view.job.attempts, 0, "it did not fail");
    assert_eq!(view.dead.unwrap().0.kind, DeadKind::Late);
    let queue = outage.dq.queue("PUNCTUAL").unwrap();
    assert_eq!(queue.replay(&[outage.scheduled.id()]).await.unwrap(), 1);
}

#[tokio::test]
async fn a_late_job_moves_to_another_queue_with_everything() {
    let outage = Outage::of(8.hours(), late("queue:ESCALATIONS")).await;
    assert_eq!(outage.shop.lines(), ["escalated order 7 of Some(\"k\"), a: Some(\"b\")"]);
    let view = outage.dq.get::<punctual>(&outage.scheduled).await.unwrap().unwrap();
    let reason = view.ended.unwrap().reason.unwrap();
    let (_, moved) = reason.split_once("moved to ESCALATIONS as job ").expect(&reason);
    let moved = outage.dq.get::<escalations>(moved.parse::<dq::JobId>().unwrap()).await.unwrap();
    let moved = moved.expect("the history has it");
    assert_eq!((moved.ended.unwrap().ending, moved.job.max_attempts), (Ending::Done, Some(7)));
}

#[tokio::test]
async fn a_late_job_is_not_lost_if_another_has_its_key() {
    let (clock, dq) = clocked().await;
    for (due, id) in [(0, 1), (1, 2)] {
        let job = dq.schedule::<punctual>(Order { id }).after(due.seconds()).key(id);
        assert!(job.await.unwrap().is_stored());
    }
    let other = dq.schedule::<escalations>(Order { id: 3 }).after(1.days()).key(1);
    assert!(other.await.unwrap().is_stored());
    clock.advance(1.hours());
    let settings = QueueSettings::new().late(late("queue:ESCALATIONS").unwrap());
    let shop = Shop::default();
    let runner = dq.runner().only(["PUNCTUAL"]).state(shop).queue("PUNCTUAL", settings);
    runner.build().unwrap().run_due().await.unwrap();
    let stats = dq.queue("ESCALATIONS").unwrap().stats().await.unwrap();
    assert_eq!((stats.ready, stats.scheduled), (2, 1), "both were moved, the other stays");
}
