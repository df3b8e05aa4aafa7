//! Guards: conditions checked before a handler runs.

use dq::prelude::*;
use dq::{Clock, Ending, Event, Guard, JobState, Queue, Verdict};
use dq_testkit::TestKit;

use crate::{Order, Shop, clocked, kit};

async fn is_still_unpaid(State(shop): State<Shop>, order: Order) -> dq::Result<bool, String> {
    match order.id {
        13 => Err("the database is away".to_owned()),
        14 => std::future::pending().await,
        15 => panic!("the guard panics"),
        id => Ok(!shop.is_paid(id)),
    }
}

#[delay_handler("GUARDED", guard = is_still_unpaid, guard_timeout = "3s", max_attempts = 2)]
pub(crate) async fn guarded(State(shop): State<Shop>, order: Order) {
    shop.write(format!("order {} is cancelled", order.id));
}

async fn never(ctx: JobContext, _order: Order) -> Guard {
    Guard::skip(format!("not on attempt {}", ctx.attempt()))
}

#[delay_handler("NEVER", blocking, guard = never)]
fn never_runs(_ctx: JobContext, _order: Order) {
    unreachable!("its guard says no");
}

async fn skipped<Q: Queue>(kit: &TestKit, id: dq::JobId) -> String {
    let view = kit.dq().get::<Q>(id).await.unwrap().expect("the history has it");
    let ended = view.ended.expect("it has ended");
    assert_eq!(ended.ending, Ending::Skipped);
    ended.reason.expect("a reason")
}

#[tokio::test]
async fn a_guard_decides_whether_the_handler_runs() {
    let shop = Shop::default();
    let kit = kit(&shop).await;
    let mut ids = Vec::new();
    for id in [1, 2] {
        ids.push(kit.dq().schedule::<guarded>(Order { id }).after(1.hours()).await.unwrap().id());
    }
    shop.pay(2);
    let runs = kit.advance(1.hours()).await;
    assert_eq!(runs.iter().map(|run| run.outcome()).collect::<Vec<_>>(), ["done", "skipped"]);
    assert_eq!(shop.lines(), ["order 1 is cancelled"]);
    assert_eq!(skipped::<guarded>(&kit, ids[1]).await, "the guard is_still_unpaid said no");

    let id = kit.dq().schedule::<never_runs>(Order { id: 1 }).await.unwrap().id();
    kit.advance(1.seconds()).await;
    assert_eq!(skipped::<never_runs>(&kit, id).await, "not on attempt 1");
}

#[tokio::test]
async fn a_guard_that_fails_or_panics_is_a_failed_attempt() {
    let shop = Shop::default();
    let kit = kit(&shop).await;
    for (id, words) in
        [(13, "the guard is_still_unpaid failed: the database is away"), (15, "panics")]
    {
        assert!(kit.dq().schedule::<guarded>(Order { id }).await.unwrap().is_stored());
        let runs = kit.advance(1.hours()).await;
        assert_eq!(runs[0].outcome(), "retry");
        let Verdict::Dead { reason, failed: true } = &runs[1].verdict else { panic!("{runs:?}") };
        assert!(reason.message.contains(words), "{reason}");
    }
    assert!(shop.lines().is_empty(), "the handler does not run");
}

#[tokio::test]
async fn a_guard_that_hangs_is_timed_out() {
    let shop = Shop::default();
    let (clock, dq) = clocked().await;
    let (sender, mut finished) = tokio::sync::mpsc::unbounded_channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let runner = dq.runner().without_linked_handlers().register::<guarded>().state(shop.clone());
    let runner = runner.observer(move |event: &Event<'_>| {
        if let Event::Finished { verdict, .. } = event {
            let _ = sender.send((*verdict).clone());
        }
    });
    let running = tokio::spawn(runner.build().unwrap().run_until(async move {
        let _ = stopped.await;
    }));
    let scheduled = dq.schedule::<guarded>(Order { id: 14 }).await.unwrap();
    let start = clock.now();
    let verdict = loop {
        assert!(clock.now().since(start) < 1.minutes(), "the guard is not timed out");
        tokio::select! {
            biased;
            verdict = finished.recv() => break verdict.unwrap(),
            () = tokio::task::yield_now() => clock.advance(10.millis()),
        }
    };
    let Verdict::Retry { error, .. } = verdict else { panic!("{verdict:?}") };
    assert_eq!(error, "the guard is_still_unpaid failed: it did not answer within 3s");
    assert!(shop.lines().is_empty(), "the handler does not run");
    drop(stop);
    running.await.unwrap().unwrap();
    let view = dq.get::<guarded>(&scheduled).await.unwrap().unwrap();
    assert_eq!((view.state, view.job.attempts), (JobState::Scheduled, 1), "it is retried");
}
