//! Escalations: one job with a step after each delay.

use std::time::Duration;

use dq::prelude::*;
use dq::{Clock, DelayHandler, ErrorKind, EscalateFrom, JobState, Timestamp, Verdict};
use dq_testkit::TestKit;

use crate::{Order, Shop, clocked, kit};

#[delay_handler("UNPAID", escalate = ["15m", "1h", "1d"], max_attempts = 2)]
async fn unpaid(ctx: JobContext, State(shop): State<Shop>, order: Order) -> HandlerResult {
    shop.write(format!("step {} attempt {} of order {}", ctx.step(), ctx.attempt(), order.id));
    Ok(if ctx.is_last_step() { Outcome::dead("never paid") } else { Outcome::next_step() })
}

#[tokio::test]
async fn an_escalation_runs_its_steps_after_their_delays() {
    let shop = Shop::default();
    let kit = kit(&shop).await;
    let scheduled = kit.dq().schedule::<unpaid>(Order { id: 1 }).key(1).await.unwrap();
    let mut delays = Vec::new();
    let start = kit.now();
    for run in kit.advance(2.days()).await {
        assert_eq!(run.id, scheduled.id(), "one job");
        delays.push(run.at.since(start));
    }
    assert_eq!(delays, [15.minutes(), 75.minutes(), 75.minutes() + 1.days()]);
    let steps = ["step 0", "step 1", "step 2"].map(|step| format!("{step} attempt 1 of order 1"));
    assert_eq!(shop.lines(), steps);
}

#[tokio::test]
async fn the_caller_may_choose_another_delay_for_the_first_step() {
    let shop = Shop::default();
    let kit = kit(&shop).await;
    assert!(
        kit.dq().schedule::<unpaid>(Order { id: 1 }).after(1.minutes()).await.unwrap().is_stored()
    );
    assert_eq!(kit.advance(1.minutes()).await.len(), 1);
    assert!(kit.advance(59.minutes()).await.is_empty());
    assert_eq!(kit.advance(1.minutes()).await.len(), 1, "the second step has its own delay");
}

#[delay_handler("ENDLESS", escalate = ["1m", "1m"])]
async fn endless(count: u32) -> HandlerResult {
    Ok(Outcome::next_step_with(&(count + 1))?)
}

#[tokio::test]
async fn the_step_after_the_last_one_is_a_dead_job() {
    let kit = TestKit::new().await.unwrap();
    let scheduled = kit.dq().schedule::<endless>(0).await.unwrap();
    let runs = kit.advance(1.hours()).await;
    let Verdict::Dead { reason, failed: true } = &runs[1].verdict else { panic!("{runs:?}") };
    assert_eq!(reason.to_string(), "exhausted: step 1 was the last of 2");
    let view = kit.dq().get::<endless>(&scheduled).await.unwrap().unwrap();
    assert_eq!(view.payload::<u32>().unwrap(), 1, "each step can have another payload");
}

#[delay_handler("NO_STEPS", max_attempts = 1)]
async fn no_steps() -> Outcome {
    Outcome::next_step()
}

#[tokio::test]
async fn the_next_step_without_an_escalation_is_a_failed_attempt() {
    let kit = TestKit::new().await.unwrap();
    assert!(kit.dq().schedule::<no_steps>(()).await.unwrap().is_stored());
    let runs = kit.advance(1.minutes()).await;
    let Verdict::Dead { reason, .. } = &runs[0].verdict else { panic!("{runs:?}") };
    assert!(reason.message.contains("has no escalation"), "{reason}");
}

#[delay_handler("DUNNING", escalate = ["15m", "1h", "1d"], escalate_from = "first_due")]
async fn dunning(ctx: JobContext, State(shop): State<Shop>, order: Order) -> HandlerResult {
    shop.write(format!("step {} of order {}", ctx.step(), order.id));
    if ctx.step() == 1 && ctx.attempt() == 1 {
        return Err("a retry does not move the next step".into());
    }
    Ok(if ctx.is_last_step() { Outcome::Done } else { Outcome::next_step() })
}

/// Schedules an order and runs due jobs after an outage. Returns how many steps ran, and the next
/// due time relative to the order.
async fn after_an_outage<Q: dq::HandlerFn<Payload = Order>>(
    length: Duration,
) -> (usize, Option<Duration>) {
    let (clock, dq) = clocked().await;
    let start = clock.now();
    let scheduled = dq.schedule::<Q>(Order { id: 1 }).await.unwrap();
    clock.advance(length);
    let shop = Shop::default();
    let runner = dq.runner().without_linked_handlers().register::<Q>().state(shop.clone());
    let runner = runner.build().unwrap();
    runner.run_due().await.unwrap();
    clock.advance(1.minutes());
    runner.run_due().await.unwrap();
    let view = dq.get::<Q>(&scheduled).await.unwrap();
    let pending = view.filter(|view| view.state == JobState::Scheduled);
    (shop.lines().len(), pending.map(|view| view.job.due.since(start)))
}

#[tokio::test]
async fn steps_count_from_the_due_time_of_the_first_also_after_an_outage() {
    let last = 75.minutes() + 1.days();
    assert_eq!(after_an_outage::<dunning>(20.minutes()).await, (1, Some(75.minutes())));
    assert_eq!(after_an_outage::<dunning>(10.hours()).await, (3, Some(last)));
    assert_eq!(after_an_outage::<dunning>(7.days()).await, (4, None), "all that is overdue runs");
    // By default, each delay counts from the end of the previous step.
    let end = 10.hours() + 1.hours();
    assert_eq!(after_an_outage::<unpaid>(10.hours()).await, (1, Some(end)));
}

#[delay_handler("APPOINTMENT", escalate = ["1m", "1h", "1h"], escalate_from = "first_due")]
async fn appointment(ctx: JobContext, at: Timestamp) -> HandlerResult {
    Ok(match ctx.step() {
        0 => Outcome::next_step_at(at),
        1 => Outcome::next_step_at_with(10.minutes(), &(at + 1.days()))?,
        _ => Outcome::Done,
    })
}

#[tokio::test]
async fn a_handler_can_say_when_the_next_step_is_due() {
    let kit = TestKit::new().await.unwrap();
    let start = kit.now();
    let scheduled = kit.dq().schedule::<appointment>(start + 5.days()).await.unwrap();
    let runs = kit.advance(6.days()).await;
    let times: Vec<_> = runs.iter().map(|run| run.at.since(start)).collect();
    assert_eq!(times, [1.minutes(), 5.days(), 5.days() + 10.minutes()]);
    assert!(runs.iter().all(|run| run.id == scheduled.id()), "one job");
}

#[delay_handler("RETRIED", escalate = ["1m", "1h"], escalate_from = "first_due")]
async fn retried(ctx: JobContext, (): ()) -> HandlerResult {
    match (ctx.step(), ctx.attempt()) {
        (0, 1) => Err("the first step fails".into()),
        (0, _) => Ok(Outcome::next_step()),
        _ => Ok(Outcome::Done),
    }
}

#[tokio::test]
async fn a_retry_of_the_first_step_does_not_move_the_others() {
    let kit = TestKit::new().await.unwrap();
    let start = kit.now();
    let _ = kit.dq().schedule::<retried>(()).await.unwrap();
    let runs = kit.advance(2.hours()).await;
    assert_eq!(runs.len(), 3);
    assert!(runs[1].at > start + 1.minutes(), "the retry is due later than the first attempt");
    assert_eq!(runs[2].at, start + 1.minutes() + 1.hours());
}

struct WithoutSteps;

impl DelayHandler for WithoutSteps {
    type Payload = ();

    fn code(&self) -> impl dq::QueueCode {
        "WITHOUT_STEPS"
    }

    fn escalate_from(&self) -> EscalateFrom {
        EscalateFrom::FirstDue
    }

    async fn handle(&self, _ctx: JobContext, (): ()) -> HandlerResult {
        Ok(Outcome::Done)
    }
}

#[tokio::test]
async fn an_object_without_steps_cannot_say_from_when_they_count() {
    let dq = Dq::connect("memory:").await.unwrap();
    let runner = dq.runner().without_linked_handlers().handler(WithoutSteps);
    let error = runner.build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("WITHOUT_STEPS"), "{error}");
    assert!(error.remedy_text().unwrap().contains("escalate"), "{error}");
}
