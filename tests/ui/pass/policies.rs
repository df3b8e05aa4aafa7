//! Forms of policies that `tests/policies` does not use: guards with other arguments than their
//! handler, a guard in a module, every `late` action, a trailing comma.

use std::time::Duration;

use dq::config::{LateAction, LatePolicy};
use dq::{
    BoxError, EscalateFrom, Guard, HandlerFn, JobContext, Queue, QueueName, State, delay_handler,
};

mod guards {
    use super::*;

    pub async fn is_open(
        ctx: JobContext,
        State(limit): State<u64>,
        order: u64,
    ) -> Result<bool, BoxError> {
        Ok(order < limit && !ctx.is_cancelled())
    }
}

#[delay_handler(
    "ORDERS",
    escalate = ["15m", "1h", "1d"],
    escalate_from = "first_due",
    guard = guards::is_open,
    late(after = "5m", then = "queue:ESCALATIONS"),
)]
async fn orders(_ctx: JobContext, State(_limit): State<u64>, _order: u64) {}

async fn by_state(State(limit): State<u64>) -> bool {
    limit > 0
}

#[delay_handler("LESS", guard = by_state)]
async fn guard_without_the_payload(_ctx: JobContext, State(_limit): State<u64>, _order: u64) {}

async fn by_context(ctx: JobContext, number: u64) -> dq::Result<Guard> {
    Ok(if ctx.attempt() > number as u32 { Guard::skip("late") } else { Guard::Run })
}

#[delay_handler("MORE", guard = by_context)]
async fn guard_with_more_extractors(_number: u64) {}

#[delay_handler("RUN", blocking, late(after = "1s", then = "run"))]
fn run() {}

#[delay_handler("DEAD", late(then = "dead", after = "1h",), version = 1)]
async fn dead(_number: u64) {}

fn late<H: HandlerFn>() -> LatePolicy {
    H::settings().late.unwrap()
}

fn main() {
    let minutes = |minutes| Duration::from_secs(60_u64 * minutes);
    assert_eq!(orders::STEPS, [minutes(15), minutes(60), minutes(24 * 60)]);
    assert_eq!(orders::ESCALATE_FROM, EscalateFrom::FirstDue);
    let escalations = LateAction::Queue(QueueName::new("ESCALATIONS").unwrap());
    assert_eq!(late::<orders>(), LatePolicy::new(minutes(5), escalations));
    assert_eq!(late::<run>().then, LateAction::Run);
    assert_eq!(late::<dead>(), LatePolicy::new(minutes(60), LateAction::Dead));
    let _ = (guard_without_the_payload, guard_with_more_extractors);
}
